package webhook

import (
	"context"
	"crypto/hmac"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// target answers requests inside a bubble, as a test tells it to.
type target struct {
	mu     sync.Mutex
	answer func(*http.Request, Body) (status int, header http.Header, err error)
	bodies []Body
	at     []time.Time
}

func (g *target) RoundTrip(r *http.Request) (*http.Response, error) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var b Body
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bodies, g.at = append(g.bodies, b), append(g.at, time.Now())
	status, header, err := g.answer(r, b)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader("fine")), Request: r}, nil
}

// told is what a Sender reported.
type told struct {
	mu        sync.Mutex
	delivered int
	dropped   int
	failures  []string
	pauses    []time.Duration
}

func (r *told) report() Report {
	return Report{
		Delivered: func(_ string, n int, _ time.Duration) { r.mu.Lock(); r.delivered += n; r.mu.Unlock() },
		Dropped:   func(_ string, n int) { r.mu.Lock(); r.dropped += n; r.mu.Unlock() },
		Failed: func(target string, reason error, n int, pause time.Duration) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.failures = append(r.failures, fmt.Sprintf("%s: %v (%d)", target, reason, n))
			r.pauses = append(r.pauses, pause)
		},
	}
}

// start runs a Sender inside a bubble until the test's end.
func start(t *testing.T, g *target, change func(*Config)) (*Sender, *told) {
	t.Helper()
	r := &told{}
	cfg := Config{URL: "https://owner.example/hook/s3cret?token=s3cret", Server: "cp-1", Region: "eu", Agent: "sightline/1", Transport: g, Report: r.report()}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, r
}

func offer(s *Sender, from, to int) {
	for k := from; k < to; k++ {
		s.Offer(Event{ID: fmt.Sprint(k), Kind: "quarantine", Time: time.Now()})
	}
}

func ids(bodies []Body) (all []string) {
	for _, b := range bodies {
		for _, e := range b.Events {
			all = append(all, e.ID)
		}
	}
	return all
}

// pass lets time pass, and everything be done that is due.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func ok(*http.Request, Body) (int, http.Header, error) { return 204, nil, nil }

// TestEventsAreSentInOrder, many in one body, and the queue is empty then.
func TestEventsAreSentInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &target{answer: ok}
		s, r := start(t, g, nil)
		offer(s, 0, 250)
		synctest.Wait()
		offer(s, 250, 251)
		synctest.Wait()
		got := ids(g.bodies)
		if len(got) != 251 || !slices.IsSortedFunc(got, func(a, b string) int { return len(a) - len(b) }) || s.Waiting() != 0 || r.delivered != 251 {
			t.Errorf("%d events came, %d wait, %d reported", len(got), s.Waiting(), r.delivered)
		}
		for _, b := range g.bodies {
			if len(b.Events) > BatchEvents || b.APIVersion != APIVersion || b.Server != "cp-1" || b.Region != "eu" || b.Dropped != 0 || b.Sent.IsZero() {
				t.Errorf("a body of %d events: %+v", len(b.Events), b)
			}
		}
	})
}

// TestAFailingTargetIsTriedAgain, at growing intervals with jitter, with the
// same ids, and nobody who offers waits for it.
func TestAFailingTargetIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := 10
		g := &target{answer: func(*http.Request, Body) (int, http.Header, error) {
			if fails--; fails >= 0 {
				return []int{503, 408, 429, 500}[fails%4], nil, nil
			}
			return 200, nil, nil
		}}
		s, r := start(t, g, nil)
		offer(s, 0, 3)
		synctest.Wait()
		if began := time.Now(); len(g.bodies) != 1 {
			t.Fatalf("%d attempts at once", len(g.bodies))
		} else if offer(s, 3, 5); time.Since(began) != 0 {
			t.Error("an offer waited")
		}
		pass(20 * time.Minute)
		if len(g.bodies) != 11 || s.Waiting() != 0 || r.delivered != 5 || r.dropped != 0 {
			t.Fatalf("%d attempts, %d wait, %+v", len(g.bodies), s.Waiting(), r)
		}
		want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60, 60}
		for k, nominal := range want {
			nominal *= time.Second
			if gap := g.at[k+1].Sub(g.at[k]); gap < nominal/2 || gap > nominal || r.pauses[k] != nominal {
				t.Errorf("pause %d is %s, told as %s, want about %s", k, gap, r.pauses[k], nominal)
			}
		}
		if got := ids(g.bodies[10:]); !slices.Equal(got, []string{"0", "1", "2", "3", "4"}) {
			t.Errorf("the last body holds %v", got)
		}
		g.mu.Lock()
		fails = 1
		g.mu.Unlock()
		offer(s, 5, 6)
		pass(2 * time.Second)
		if n := len(g.at); g.at[n-1].Sub(g.at[n-2]) > time.Second {
			t.Error("the pause did not start anew after a success")
		}
	})
}

// TestAFullQueueDropsTheOldest, counts them, and the next body says so.
func TestAFullQueueDropsTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := true
		g := &target{answer: func(*http.Request, Body) (int, http.Header, error) {
			if down {
				return 0, nil, errors.New("connection refused")
			}
			return 200, nil, nil
		}}
		s, r := start(t, g, func(c *Config) { c.Queue = 10 })
		offer(s, 0, 25)
		if s.Waiting() != 10 || r.dropped != 15 {
			t.Errorf("%d wait, %d dropped", s.Waiting(), r.dropped)
		}
		pass(time.Minute)
		g.mu.Lock()
		down = false
		g.mu.Unlock()
		pass(2 * time.Minute)
		last := g.bodies[len(g.bodies)-1]
		if got := ids([]Body{last}); len(got) != 10 || got[0] != "15" || last.Dropped != 15 || s.Waiting() != 0 {
			t.Errorf("%v came, %d dropped before them", got, last.Dropped)
		}
	})
}

// TestEventsThatLeaveDuringAnAttempt are neither sent twice nor taken for others.
func TestEventsThatLeaveDuringAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *Sender
		g := &target{}
		g.answer = func(*http.Request, Body) (int, http.Header, error) {
			if len(g.bodies) == 1 {
				offer(s, 1, 2) // pushes 0, which is under way, out of a queue of 1
			}
			return 200, nil, nil
		}
		s, _ = start(t, g, func(c *Config) { c.Queue = 1 })
		offer(s, 0, 1)
		synctest.Wait()
		if got := ids(g.bodies); !slices.Equal(got, []string{"0", "1"}) || s.Waiting() != 0 {
			t.Errorf("%v came, %d wait", got, s.Waiting())
		}
	})
}

// TestWhatIsRefusedForGoodIsDropped, and the next events go on; redirects are
// not followed.
func TestWhatIsRefusedForGoodIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []int{400, 302, 410, 200}
		g := &target{}
		g.answer = func(r *http.Request, _ Body) (int, http.Header, error) {
			if r.URL.Host != "owner.example" {
				t.Errorf("asked %s", r.URL.Host)
			}
			return answers[len(g.bodies)-1], http.Header{"Location": {"https://elsewhere.example/"}}, nil
		}
		s, r := start(t, g, nil)
		for k := range answers {
			offer(s, k, k+1)
			synctest.Wait()
		}
		if len(g.bodies) != 4 || s.Waiting() != 0 || r.delivered != 1 || !slices.Equal(r.pauses, []time.Duration{0, 0, 0}) {
			t.Errorf("%d bodies, %d wait, %+v", len(g.bodies), s.Waiting(), r)
		}
	})
}

// TestATargetSetsItsPace by Retry-After, up to a bound.
func TestATargetSetsItsPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &target{}
		g.answer = func(*http.Request, Body) (int, http.Header, error) {
			return []int{429, 503, 200}[len(g.bodies)-1], http.Header{"Retry-After": {[]string{"30", "65000", ""}[len(g.bodies)-1]}}, nil
		}
		s, _ := start(t, g, nil)
		offer(s, 0, 1)
		pass(time.Hour)
		if len(g.at) != 3 || g.at[1].Sub(g.at[0]) != 30*time.Second || g.at[2].Sub(g.at[1]) != maxAfter {
			t.Errorf("attempts at %v", g.at)
		}
	})
}

// TestAHangingTarget is given up after the timeout, and a stop does not wait.
func TestAHangingTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &target{answer: func(r *http.Request, _ Body) (int, http.Header, error) {
			<-r.Context().Done()
			return 0, nil, r.Context().Err()
		}}
		s, r := start(t, g, func(c *Config) { c.Timeout = 3 * time.Second })
		offer(s, 0, 1)
		pass(3*time.Second + time.Millisecond)
		synctest.Wait()
		if len(r.failures) != 1 || !strings.Contains(r.failures[0], "https://owner.example: ") {
			t.Errorf("failures %v", r.failures)
		}
		pass(2 * time.Second) // it hangs again when the test ends
	})
}

// TestNoSecretIsTold: neither the path nor the query of the URL is in an error.
func TestNoSecretIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &target{answer: func(*http.Request, Body) (int, http.Header, error) { return 0, nil, errors.New("no route to host") }}
		s, r := start(t, g, nil)
		offer(s, 0, 1)
		synctest.Wait()
		if len(r.failures) != 1 || strings.Contains(r.failures[0], "s3cret") || !strings.Contains(r.failures[0], "no route to host") || s.Target() != "https://owner.example" {
			t.Errorf("failures %v of %s", r.failures, s.Target())
		}
	})
	for _, bad := range []string{"", "owner.example", "ftp://s3cret.example/", "http://owner.example/s3cret", "http://10.0.0.1/s3cret", "https://me:s3cret@owner.example/",
		"https:///s3cret", "https://owner.example/#s3cret", "https://owner.example/%zzs3cret"} {
		if _, err := New(Config{URL: bad}); err == nil || strings.Contains(err.Error(), "s3cret@") || strings.Contains(err.Error(), "/s3cret") || strings.Contains(err.Error(), "#s3cret") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	for _, good := range []string{"https://owner.example/x?y=z", "http://127.0.0.1:8080/", "http://[::1]/", "http://localhost/hook"} {
		if _, err := New(Config{URL: good}); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	if _, err := New(Config{URL: "https://owner.example/", Key: []byte("short")}); err == nil {
		t.Error("a short key is taken")
	}
}

// TestOverTheWire sends to a real server, with a signature that its owner checks.
func TestOverTheWire(t *testing.T) {
	key := []byte("0123456789abcdef")
	type arrival struct {
		header http.Header
		raw    []byte
	}
	arrived := make(chan arrival, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.RequestURI() != "/hook?a=b" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		arrived <- arrival{r.Header, raw}
	}))
	defer srv.Close()
	s, err := New(Config{URL: srv.URL + "/hook?a=b", Key: key, Server: "cp-1", Region: "eu", Agent: "sightline/1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	when := time.Date(2026, 3, 1, 14, 2, 0, 0, time.UTC)
	s.Offer(Event{ID: "18a3f2-17", Time: when, Kind: "quarantine", Service: "shop/checkout", Instance: "checkout-3", UID: "i17",
		Detail: "5 changes within 10m0s", Until: when.Add(time.Minute), History: []Change{{when.Add(-time.Minute), false, "R4"}}})
	got := <-arrived
	cancel()
	<-done
	if got.header.Get("Content-Type") != "application/json" || got.header.Get("User-Agent") != "sightline/1" {
		t.Errorf("headers %v", got.header)
	}
	var b Body
	if err := json.Unmarshal(got.raw, &b); err != nil {
		t.Fatal(err)
	}
	if want := Sign(key, b.Sent, got.raw); !hmac.Equal([]byte(want), []byte(got.header.Get(SignatureHeader))) {
		t.Errorf("signed %s, want %s", got.header.Get(SignatureHeader), want)
	}
	_, events, _ := strings.Cut(string(got.raw), `"events":`)
	want := `[{"id":"18a3f2-17","time":"2026-03-01T14:02:00Z","kind":"quarantine","service":"shop/checkout","instance":"checkout-3","uid":"i17",` +
		`"detail":"5 changes within 10m0s","until":"2026-03-01T14:03:00Z","history":[{"time":"2026-03-01T14:01:00Z","serving":false,"rule":"R4"}]}]}`
	if events != want {
		t.Errorf("events\n%s, want\n%s", events, want)
	}
}

// TestSign is fixed: owners have written their checks.
func TestSign(t *testing.T) {
	got := Sign([]byte("0123456789abcdef"), time.Unix(1772373720, 0), []byte(`{"a":1}`))
	if want := "t=1772373720,v1=db047656bb8477bc1789596ffd3aea87c51c5768ae94fe3b813312fbd3c405b3"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
