package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"
)

const (
	// APIVersion names the schema of a body.
	APIVersion = "events.sightline.dev/v1"
	// BatchEvents is how many events one body holds at most.
	BatchEvents = 100
	// SignatureHeader carries the signature of a body, where there is a key.
	SignatureHeader = "Sightline-Signature"
	// KeyBytes is the shortest key that signs.
	KeyBytes = 16

	answerBytes = 64 << 10 // of an answer that are read, so that its connection can be used again
	maxAfter    = 5 * time.Minute
)

// Config is what a Sender is built from.
type Config struct {
	URL    string // https, or http to a loopback address
	Key    []byte // signs bodies; empty: they are not signed
	Server string // name of this replica
	Region string
	Agent  string // User-Agent

	Queue    int           // events that wait at most; 0: 1024
	Timeout  time.Duration // of one attempt; 0: 5 s
	RetryMin time.Duration // first pause after a failure; 0: 1 s
	RetryMax time.Duration // longest pause; 0: 1 min

	// Transport carries the requests; nil: TLS 1.2 or newer with the system's
	// roots, no proxy.
	Transport http.RoundTripper
	Report    Report
}

// Report tells what becomes of events; each may be nil. target is the URL's
// scheme and host.
type Report struct {
	Delivered func(target string, events int, took time.Duration)
	// Failed: an attempt failed; the events are tried again after about the pause,
	// or dropped where it is 0.
	Failed func(target string, reason error, events int, pause time.Duration)
	// Dropped: so many events leave the full queue.
	Dropped func(target string, events int)
}

// Event is something that an owner should hear of.
type Event struct {
	ID       string    `json:"id"`
	Time     time.Time `json:"time"`
	Kind     string    `json:"kind"`
	Over     bool      `json:"over,omitempty"` // what the kind names has ended
	Service  string    `json:"service,omitempty"`
	Instance string    `json:"instance,omitempty"` // label, or uid without one
	UID      string    `json:"uid,omitempty"`
	Zone     string    `json:"zone,omitempty"`
	Detail   string    `json:"detail"` // the numbers, for a person
	Serving  int       `json:"serving,omitempty"`
	Members  int       `json:"members,omitempty"`
	Floor    uint32    `json:"floorPercent,omitempty"`
	Until    time.Time `json:"until,omitzero"`
	History  []Change  `json:"history,omitempty"` // that led there, oldest first
}

// Change is one crossing between serving and out.
type Change struct {
	Time    time.Time `json:"time"`
	Serving bool      `json:"serving"`
	Rule    string    `json:"rule"`
}

// Body is what one request carries.
type Body struct {
	APIVersion string    `json:"apiVersion"`
	Server     string    `json:"server"`
	Region     string    `json:"region"`
	Sent       time.Time `json:"sent"`
	Dropped    uint64    `json:"dropped"` // events that were lost before these, over the process's life
	Events     []Event   `json:"events"`
}

// Sender sends events to one target. Run sends; Offer may be called from any
// goroutine, also before Run and after it.
type Sender struct {
	// Fixed after New.
	cfg    Config
	target string
	client *http.Client
	wake   chan struct{} // size 1

	mu      sync.Mutex
	queue   []Event
	first   uint64 // number of queue[0] among all events offered
	dropped uint64
}

// New returns a Sender, or says why the URL or the key is refused.
func New(cfg Config) (*Sender, error) {
	target, err := check(cfg.URL)
	if err != nil {
		return nil, err
	}
	if len(cfg.Key) > 0 && len(cfg.Key) < KeyBytes {
		return nil, fmt.Errorf("the key has %d bytes: give at least %d", len(cfg.Key), KeyBytes)
	}
	orElse(&cfg.Queue, 1024)
	orElse(&cfg.Timeout, 5*time.Second)
	orElse(&cfg.RetryMin, time.Second)
	orElse(&cfg.RetryMax, time.Minute)
	transport := cfg.Transport
	if transport == nil {
		transport = &http.Transport{
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
			MaxConnsPerHost: 1, MaxIdleConns: 1, IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: answerBytes,
		}
	}
	return &Sender{cfg: cfg, target: target, wake: make(chan struct{}, 1), client: &http.Client{
		Transport: transport, Timeout: cfg.Timeout,
		// A redirect would carry the events to where nobody configured them.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func orElse[T comparable](field *T, missing T) {
	var zero T
	if *field == zero {
		*field = missing
	}
}

// check returns the target's name without what may be secret of it.
func check(text string) (target string, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", errors.New("it is not a URL") // the parser's error would repeat it
	}
	target = u.Scheme + "://" + u.Host
	switch {
	case u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return "", errors.New("write https://HOST/PATH, or http:// to a loopback address")
	case u.User != nil:
		return "", fmt.Errorf("%s: it holds a user name or password: sign bodies with a key instead", target)
	case u.Fragment != "":
		return "", fmt.Errorf("%s: it holds a fragment, which is never sent", target)
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return "", fmt.Errorf("%s: plain http goes to a loopback address only: write https", target)
	}
	return target, nil
}

func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// Target is the URL's scheme and host.
func (s *Sender) Target() string { return s.target }

// Waiting is how many events wait.
func (s *Sender) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// Offer queues an event. It never waits: when the queue is full the oldest event
// leaves it.
func (s *Sender) Offer(e Event) {
	s.mu.Lock()
	full := len(s.queue) >= s.cfg.Queue
	if full {
		s.queue[0] = Event{}
		s.queue = s.queue[1:]
		s.first++
		s.dropped++
	}
	s.queue = append(s.queue, e)
	s.mu.Unlock()
	if full && s.cfg.Report.Dropped != nil {
		s.cfg.Report.Dropped(s.target, 1)
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run sends until ctx ends. It must run at most once.
func (s *Sender) Run(ctx context.Context) error {
	defer s.client.CloseIdleConnections()
	var pause time.Duration // after the last attempt, before its jitter
	for ctx.Err() == nil {
		body, last := s.next(time.Now())
		if body == nil {
			select {
			case <-ctx.Done():
			case <-s.wake:
			}
			continue
		}
		next := min(max(2*pause, s.cfg.RetryMin), s.cfg.RetryMax)
		after, err := s.attempt(ctx, body, last, next)
		if err == nil {
			pause = 0
			continue
		}
		pause = next
		if !sleep(ctx, max(jittered(pause), after)) {
			return nil
		}
	}
	return nil
}

// jittered is between half of the pause and the whole.
func jittered(pause time.Duration) time.Duration { return pause/2 + rand.N(pause/2+1) }

// sleep waits, and reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// next is a body with the oldest events, and the number behind its last; nil:
// nothing waits.
func (s *Sender) next(now time.Time) (*Body, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.queue), BatchEvents)
	if n == 0 {
		return nil, 0
	}
	events := append([]Event(nil), s.queue[:n]...)
	return &Body{APIVersion: APIVersion, Server: s.cfg.Server, Region: s.cfg.Region, Sent: now.UTC(), Dropped: s.dropped, Events: events}, s.first + uint64(n)
}

// done takes the events before a number out of the queue; some may have left it
// meanwhile.
func (s *Sender) done(last uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last <= s.first {
		return
	}
	n := min(last-s.first, uint64(len(s.queue)))
	clear(s.queue[:n])
	if s.queue, s.first = s.queue[n:], s.first+n; len(s.queue) == 0 {
		s.queue = nil
	}
}

// attempt sends one body. An error says that the same events have to be tried
// again, after about the pause, and not before the target asked for.
func (s *Sender) attempt(ctx context.Context, body *Body, last uint64, pause time.Duration) (after time.Duration, err error) {
	began := time.Now()
	after, err = s.post(ctx, body)
	events := len(body.Events)
	var refused *refusedError
	switch {
	case err == nil:
		s.done(last)
		if s.cfg.Report.Delivered != nil {
			s.cfg.Report.Delivered(s.target, events, time.Since(began))
		}
		return 0, nil
	case ctx.Err() != nil: // it was asked to stop
		return 0, err
	case errors.As(err, &refused):
		s.done(last)
		s.failed(err, events, 0)
		return 0, nil
	}
	s.failed(err, events, pause)
	return after, err
}

func (s *Sender) failed(reason error, events int, pause time.Duration) {
	if s.cfg.Report.Failed != nil {
		s.cfg.Report.Failed(s.target, reason, events, pause)
	}
}

// refusedError is an answer that another attempt would not change.
type refusedError struct{ status string }

func (e *refusedError) Error() string { return "the target refuses it: " + e.status }

// post sends one body. after is how long the target asks to be left alone.
func (s *Sender) post(ctx context.Context, body *Body) (after time.Duration, err error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return 0, &refusedError{err.Error()}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cfg.URL, bytes.NewReader(raw))
	if err != nil {
		return 0, &refusedError{"the request cannot be made"}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", s.cfg.Agent)
	if len(s.cfg.Key) > 0 {
		req.Header.Set(SignatureHeader, Sign(s.cfg.Key, body.Sent, raw))
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, withoutURL(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, answerBytes)) // what it says does not matter
	switch code := resp.StatusCode; {
	case code < 300:
		return 0, nil
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code >= 500:
		return retryAfter(resp.Header.Get("Retry-After")), fmt.Errorf("the target answers %d", code)
	default:
		return 0, &refusedError{strconv.Itoa(code)}
	}
}

// retryAfter reads the header's seconds; its other form, a date, is left alone.
func retryAfter(header string) time.Duration {
	n, err := strconv.ParseUint(header, 10, 16)
	if err != nil {
		return 0
	}
	return min(time.Duration(n)*time.Second, maxAfter)
}

// withoutURL takes the URL, which may hold a secret, out of a client's error.
func withoutURL(err error) error {
	var inner *url.Error
	if errors.As(err, &inner) {
		err = inner.Err
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	return err
}

// Sign is the signature of a body that was sent at a time.
func Sign(key []byte, at time.Time, body []byte) string {
	seconds := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(seconds + "."))
	mac.Write(body)
	return "t=" + seconds + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}
