package server

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/server/webhook"
	"github.com/sightlinedev/sightline/views"
)

// owners tells those who own services of incidents, over their webhooks. It
// never waits, whatever becomes of a webhook. A nil owners has nobody to tell.
type owners struct {
	senders []*webhook.Sender
	prefix  string // of the ids of this process's events
	number  atomic.Uint64
	label   func(registry.UID) string
}

// buildOwners makes a sender for each webhook.
func (s *Server) buildOwners(context.Context) error {
	if len(s.cfg.WebhookURLs) == 0 {
		if s.cfg.WebhookKey != "" {
			return startError(status.InvalidConfig, "--webhook-key is given and --webhook-url is not: name a URL, or leave the key out")
		}
		return nil
	}
	var key []byte
	if file := s.cfg.WebhookKey; file != "" {
		raw, err := os.ReadFile(file)
		if err != nil {
			return startError(status.InvalidConfig, "--webhook-key: %v", err)
		}
		if key = bytes.TrimSpace(raw); len(key) == 0 {
			return startError(status.InvalidConfig, "--webhook-key %s: the file is empty", file)
		}
	}
	o := &owners{prefix: strconv.FormatInt(s.started.UnixMilli(), 36), label: s.label}
	for i, url := range s.cfg.WebhookURLs {
		sender, err := webhook.New(webhook.Config{URL: url, Key: key, Server: s.cfg.Name, Region: s.cfg.Region,
			Agent: "sightline/" + s.cfg.Version, Report: s.report.webhookReport()})
		if err != nil {
			return startError(status.InvalidConfig, "--webhook-url %d: %v", i+1, err)
		}
		o.senders = append(o.senders, sender)
	}
	s.report.owners = o
	return nil
}

// label is an instance's name for people: its label, or its uid.
func (s *Server) label(uid registry.UID) string {
	if row, ok := s.writer.Lookup(uid); ok && row.Label != "" {
		return row.Label
	}
	return uid.String()
}

// tell gives an event its id and hands it to every webhook.
func (o *owners) tell(e webhook.Event, uid registry.UID) {
	if o == nil {
		return
	}
	e.ID = fmt.Sprintf("%s-%d", o.prefix, o.number.Add(1))
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Time = e.Time.UTC()
	if uid != 0 {
		e.UID, e.Instance = uid.String(), o.label(uid)
	}
	for _, s := range o.senders {
		s.Offer(e)
	}
}

// The incidents, each with what an owner needs of it.

func (r *reporter) incident(kind, name, zone, detail string) {
	r.tell(webhook.Event{Kind: kind, Service: name, Zone: zone, Detail: detail}, 0)
}

// tell counts an incident, logs it, and tells the owners. What is over alarms
// nobody.
func (r *reporter) tell(e webhook.Event, uid registry.UID) {
	args := []any{"kind", e.Kind, "service", e.Service, "zone", e.Zone, "reason", e.Detail}
	if uid != 0 {
		args = append(args, "instance", uid.String())
	}
	if !e.Until.IsZero() {
		args = append(args, "until", e.Until)
	}
	if e.Over {
		r.log.Info("an incident is over", args...)
	} else {
		r.metrics.Incident(e.Kind)
		r.log.Warn("incident", args...)
	}
	r.owners.tell(e, uid)
}

func (r *reporter) healthIncident(n registry.Name, i health.Incident) {
	e := webhook.Event{Time: i.At, Kind: i.Kind.String(), Service: n.String(), Detail: i.Detail, Until: i.Until.UTC()}
	for _, f := range i.Flaps {
		e.History = append(e.History, webhook.Change{Time: f.At.UTC(), Serving: f.Serving, Rule: f.Rule.String()})
	}
	r.tell(e, i.UID)
}

func (r *reporter) viewIncident(i views.Incident) {
	r.tell(webhook.Event{Kind: i.Kind.String(), Over: i.Kind == views.GuardReleased, Service: i.Name.String(), Zone: i.Zone,
		Detail: i.Reason + "; " + count(i.Serving, i.Members, i.Floor), Serving: i.Serving, Members: i.Members, Floor: i.Floor}, i.UID)
}

func (r *reporter) observerIncident(i health.ObserverIncident) {
	r.tell(webhook.Event{Time: i.At, Kind: i.Kind.String(), Over: i.Over, Zone: i.Zone, Detail: i.Detail}, 0)
}

// webhookReport counts what becomes of events, and logs failures, once a minute
// for each target.
func (r *reporter) webhookReport() webhook.Report {
	return webhook.Report{
		Delivered: func(_ string, events int, _ time.Duration) { r.metrics.WebhookEvents("delivered", events) },
		Failed: func(target string, reason error, events int, pause time.Duration) {
			if pause == 0 {
				r.metrics.WebhookEvents("refused", events)
			}
			r.metrics.WebhookFailed()
			if r.sparse.first("webhook " + target) {
				r.log.Warn("a webhook does not take events", "target", target, "events", events, "again_in", pause, "reason", reason)
			}
		},
		Dropped: func(target string, events int) {
			r.metrics.WebhookEvents("dropped", events)
			if r.sparse.first("webhook full " + target) {
				r.log.Warn("events for a webhook are dropped: its queue is full", "target", target)
			}
		},
	}
}
