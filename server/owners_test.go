package server

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/health"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/webhook"
	"github.com/sightlinedev/sightline/views"
)

// owner is a webhook that keeps what it is told.
type owner struct {
	*httptest.Server
	key []byte

	mu     sync.Mutex
	events []webhook.Event
	bad    []string
}

func newOwner(t *testing.T, key string) *owner {
	o := &owner{key: []byte(key)}
	o.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		var b webhook.Body
		if err == nil {
			err = json.Unmarshal(raw, &b)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		if err != nil || r.Header.Get(webhook.SignatureHeader) != webhook.Sign(o.key, b.Sent, raw) {
			o.bad = append(o.bad, string(raw))
		}
		o.events = append(o.events, b.Events...)
	}))
	t.Cleanup(o.Close)
	return o
}

// told returns the events of a kind.
func (o *owner) told(kind string) (all []webhook.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.events {
		if e.Kind == kind {
			all = append(all, e)
		}
	}
	return all
}

// TestOwnersAreTold of an incident, signed, while another webhook is down.
func TestOwnersAreTold(t *testing.T) {
	const key = "0123456789abcdef"
	o := newOwner(t, key)
	keyFile := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(keyFile, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := devConfig(dataDir(t))
	cfg.WebhookURLs = []string{"http://127.0.0.1:1/s3cret", o.URL + "/hook"}
	cfg.WebhookKey, cfg.Name = keyFile, "cp-1"
	r := start(t, cfg)
	uids := r.register("127.0.0.1", "127.0.0.2")
	r.eventually("both are listed", func() bool { return len(listed(r.resolve())) == 2 })
	self := registryv1.NewRegistryServiceClient(r.api("/ns/shop/sa/cart"))
	for _, uid := range uids {
		if _, err := self.DeregisterInstance(callCtx(t), &registryv1.DeregisterInstanceRequest{Namespace: "shop", Service: "cart", Instance: uid}); err != nil {
			t.Fatal(err)
		}
	}
	r.eventually("the owner is told that the set is empty", func() bool { return len(o.told("emptied")) > 0 })
	e := o.told("emptied")[0]
	if e.Service != "shop/cart" || e.ID == "" || e.Time.IsZero() || e.Detail == "" {
		t.Errorf("event %+v", e)
	}
	r.eventually("the dead webhook is told of once", func() bool { return strings.Contains(r.logs.String(), "a webhook does not take events") })
	if logs := r.logs.String(); strings.Contains(logs, "s3cret") || strings.Contains(logs, key) || !strings.Contains(logs, "target=http://127.0.0.1:1") {
		t.Errorf("the log holds a secret, or not the target:\n%s", logs)
	}
	if _, metrics := r.get("/metrics"); !strings.Contains(metrics, `sightline_webhook_events_total{result="delivered"}`) || !strings.Contains(metrics, "sightline_webhook_failures_total") {
		t.Error("it is not counted")
	}
	if o.mu.Lock(); len(o.bad) > 0 {
		t.Errorf("bodies that do not verify: %v", o.bad)
	}
	o.mu.Unlock()
}

// TestIncidentsCarryTheirEvidence, in the log and in the event.
func TestIncidentsCarryTheirEvidence(t *testing.T) {
	logs := &logBuffer{}
	r := newReporter(slog.New(slog.NewTextHandler(logs, nil)), "1", "b", func() *views.Snapshot { return views.NewSnapshot(true) })
	o := newOwner(t, "")
	sender, err := webhook.New(webhook.Config{URL: o.URL})
	if err != nil {
		t.Fatal(err)
	}
	r.owners = &owners{senders: []*webhook.Sender{sender}, prefix: "p", label: func(uid registry.UID) string { return "label-of-" + uid.String() }}
	n := registry.Name{Namespace: "shop", Service: "cart"}
	now := time.Now()
	r.healthIncident(n, health.Incident{Kind: health.InQuarantine, UID: 17, At: now, Until: now.Add(time.Minute), Detail: "5 changes",
		Flaps: []health.Flap{{At: now, Rule: health.R4}, {At: now, Serving: true, Rule: health.R7}}})
	r.healthIncident(n, health.Incident{Kind: health.SuspectLeases, At: now, Detail: "4 of 9"})
	r.viewIncident(views.Incident{Kind: views.GuardTripped, Name: n, Zone: "a", Reason: "below the floor", Serving: 1, Members: 4, Floor: 50})
	r.viewIncident(views.Incident{Kind: views.GuardReleased, Name: n, Zone: "a"})
	r.observerIncident(health.ObserverIncident{Kind: health.BrakeEngaged, Detail: "61 of 300", At: now})
	r.observerIncident(health.ObserverIncident{Kind: health.BrakeEngaged, Over: true, Detail: "61 of 300", At: now})
	if sender.Waiting() != 6 {
		t.Fatalf("%d events wait", sender.Waiting())
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- sender.Run(ctx) }()
	for deadline := time.Now().Add(patience); sender.Waiting() > 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	cancel()
	<-done
	q := o.told("quarantine")
	if len(q) != 1 || q[0].ID != "p-1" || q[0].Instance != "label-of-i17" || q[0].UID != "i17" || len(q[0].History) != 2 || q[0].History[0].Rule != "R4" ||
		!q[0].History[1].Serving || !q[0].Until.Equal(now.Add(time.Minute)) {
		t.Errorf("quarantine %+v", q)
	}
	if g := o.told("guard-tripped"); len(g) != 1 || g[0].Serving != 1 || g[0].Members != 4 || g[0].Floor != 50 || g[0].Zone != "a" || g[0].Over {
		t.Errorf("guard %+v", g)
	}
	if g := o.told("guard-released"); len(g) != 1 || !g[0].Over {
		t.Errorf("guard %+v", g)
	}
	if b := o.told("brake"); len(b) != 2 || b[0].Over || !b[1].Over || b[0].Service != "" {
		t.Errorf("brake %+v", b)
	}
	for _, text := range []string{"kind=quarantine", "instance=i17", "until=", "kind=suspect-leases", `msg="an incident is over" kind=brake`} {
		if !strings.Contains(logs.String(), text) {
			t.Errorf("no %q in the log:\n%s", text, logs.String())
		}
	}
}

// TestWebhooksThatDoNotStart: the refusal names the flag, and no secret.
func TestWebhooksThatDoNotStart(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"--webhook-url 2": func(c *Config) {
			c.WebhookURLs = []string{"https://owner.example/s3cret", "http://owner.example/s3cret"}
		},
		"--webhook-key is given": func(c *Config) { c.WebhookKey = empty },
		"the file is empty":      func(c *Config) { c.WebhookKey, c.WebhookURLs = empty, []string{"https://owner.example/s3cret"} },
		"no such file":           func(c *Config) { c.WebhookKey, c.WebhookURLs = empty+"-", []string{"https://owner.example/s3cret"} },
	} {
		cfg := devConfig(dataDir(t))
		change(&cfg)
		s, err := New(t.Context(), cfg)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", want, err)
		}
		if err == nil {
			_ = s.Close()
		}
	}
}
