package server

import (
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/resolve"
	"github.com/sightlinedev/sightline/server/shard"
	"github.com/sightlinedev/sightline/server/watch"
	"github.com/sightlinedev/sightline/server/xds"
	"github.com/sightlinedev/sightline/views"
	"github.com/sightlinedev/sightline/views/store"
)

// The events here touch more than the reporter: health of the server, logs on
// disk, the publisher's window.

func (s *Server) storeEvents() store.Events {
	r := s.report
	return store.Events{
		Frozen: func(st store.Status) {
			s.storeSince.Store(time.Now().UnixNano())
			r.storeState(st)
			s.storeChanged()
		},
		Resumed: func(after time.Duration) {
			r.storeState(store.Status{})
			r.log.Info("the store takes writes again", "after", after)
			s.storeChanged()
		},
		BackgroundError: func(err error, leftOut int) {
			r.log.Error("store: a flush or compaction failed", "reason", err, "unlogged", leftOut)
		},
		Corruption: func(err error, leftOut int) {
			r.log.Error("store: a checksum is wrong", "reason", err, "unlogged", leftOut)
		},
		WriteStall: func(reason string) { r.log.Warn("store: writers are held back", "reason", reason) },
		DiskSlow: func(op, path string, running time.Duration) {
			r.log.Warn("store: the disk is slow", "operation", op, "path", path, "running", running)
		},
		Dropped:   func(q store.Queue) { r.metrics.StoreDropped(q.String()) },
		Committed: func(_ int, took time.Duration) { r.metrics.StoreCommitted(took) },
	}
}

// storeChanged tells health whether the registry takes writes; before the
// views are complete nothing is serving anyway.
func (s *Server) storeChanged() {
	if s.completed.Load() {
		s.serving()
	}
}

func (s *Server) shardEvents() shard.Events {
	r := s.report
	return shard.Events{
		Transitions:      s.transitions,
		Changed:          func(c registry.Change) { s.reports.Changed(c) },
		Contract:         func(n registry.Name, c registry.Contract, zone string) { s.reports.Contract(n, c, zone) },
		Probing:          func(n registry.Name, p []health.Probing) { s.reports.Probing(n, p) },
		Stance:           s.stance,
		Rollout:          r.rollout,
		ObserverIncident: r.observerIncident,
		HealthIncident:   r.healthIncident,
		ViewIncident:     r.viewIncident,
		Dropped:          func(n int) { r.metrics.Reports("all", "dropped", n) },
		Refused:          func(n int) { r.metrics.Reports("all", "refused", n) },
		OutcomesDropped:  func(n int) { r.metrics.Reports("callers", "dropped", n) },
		OutcomesRefused:  func(n int) { r.metrics.Reports("callers", "refused", n) },
		Gap: func(number int, late time.Duration) {
			r.metrics.EvaluatorGap()
			r.log.Warn("the evaluation did not run: evidence of that time is missing, every lease got a full term", "shard", number, "late", late)
		},
		LostMemory: func(n registry.Name, err error) {
			r.log.Warn("a service's checkpoint cannot be read; its instances are in rotation", "service", n.String(), "reason", err)
		},
		Stale: func(n registry.Name, reason string) {
			r.metrics.StaleCandidate()
			r.log.Warn("a view was refused at publication", "service", n.String(), "reason", reason)
		},
		Rebuilt: func(services, instances int, took time.Duration) {
			r.metrics.Rebuilt(took)
			r.log.Info("views are complete", "services", services, "instances", instances, "took", took)
		},
	}
}

// transitions keeps a service's transitions, and logs each.
func (s *Server) transitions(n registry.Name, version views.Version, all []health.Transition) {
	s.reports.Transitions(n, all)
	for _, t := range all {
		s.report.metrics.Transition(t.To.String())
		if t.Member && t.From.Serving() != t.To.Serving() {
			s.report.metrics.Flapped()
		}
		shown := "" // most transitions are of a view that is published with them
		if !version.IsZero() {
			shown = version.String()
		}
		s.report.log.Info("transition", "service", n.String(), "instance", t.UID.String(), "from", t.From.String(), "to", t.To.String(),
			"member", t.Member, "rule", t.Rule.String(), "reason", t.Detail, "version", shown)
		s.store.AppendTransition(store.Transition{At: t.At, Name: n, UID: t.UID, From: t.From, To: t.To,
			Member: t.Member, Rule: t.Rule, Detail: t.Detail, Removal: t.Removal, Version: version})
	}
}

func (s *Server) xdsEvents() xds.Events {
	r := s.report
	return xds.Events{
		Streams:       func(kind, protocol string, delta int) { r.metrics.Streams(protocol, kind, delta) },
		Push:          func(typ, kind string, _, _, bytes int) { r.metrics.Pushed(typ, kind, bytes) },
		Nack:          r.nacked,
		Propagation:   r.metrics.Propagated,
		InitialAnswer: func(_ string, resumed bool, after time.Duration) { r.metrics.InitialAnswer(resumed, after) },
		FanOut:        s.fanOut,
		Ended: func(who identity.Principal, node, kind string, reason error) {
			r.metrics.StreamEnded(kind)
			if r.sparse.first("ended " + who.String() + node) {
				r.log.Warn("a stream was ended", "client", who.String(), "node", node, "kind", kind, "reason", reason)
			}
		},
		Throttled: func(who identity.Principal, node string) {
			r.metrics.Throttled()
			if r.sparse.first("throttled " + who.String() + node) {
				r.log.Warn("a stream asks too fast and waits", "client", who.String(), "node", node)
			}
		},
		Refused:      func(who identity.Principal, n views.Name) { s.refused(who, n, "xds", "outside the caller's scope") },
		Unrenderable: r.unrenderable,
		LoadStreams:  func(kind xds.LoadKind, delta int) { r.metrics.Streams("lrs", kind.String(), delta) },
		LoadDropped:  s.loadDropped,
	}
}

// fanOut feeds the width of the additions window.
func (s *Server) fanOut(took time.Duration) { s.publisher.FanOut(time.Now(), took) }

func (s *Server) watchEvents() watch.Events {
	r := s.report
	return watch.Events{
		Opened:  func(identity.Principal) { r.metrics.Watches(1) },
		Closed:  func(identity.Principal, error) { r.metrics.Watches(-1) },
		Refused: func(who identity.Principal, n views.Name, rule string) { s.refused(who, n, "watch", rule) },
	}
}

func (s *Server) resolveEvents() resolve.Events {
	r := s.report
	return resolve.Events{
		Answered: func(identity.Principal, views.Name) { r.metrics.Resolution("api", "ok") },
		Refused:  func(who identity.Principal, n views.Name, rule string) { s.refused(who, n, "api", rule) },
		Unknown:  func(identity.Principal) { r.metrics.Resolution("api", "unknown") },
	}
}

// audit is what a refused resolution is recorded by.
type audit struct {
	who  identity.ID
	name views.Name
}

// refused counts a service that exists and was kept from a caller, and audits
// it once per caller, name and minute.
func (s *Server) refused(who identity.Principal, n views.Name, via, rule string) {
	s.report.metrics.Resolution(via, "denied")
	if !s.audited.first(audit{who.ID, n}) {
		return
	}
	s.store.AppendAudit(store.Record{At: time.Now(), Actor: who.String(), Address: who.Addr.String(),
		Action: "Resolve via " + via, Target: n.String(), Reason: rule})
}

func (r *reporter) nacked(x xds.Rejection) {
	r.metrics.Nacked(x.Type)
	if r.sparse.first("nack " + x.Client.String() + x.Node + x.Type) {
		r.log.Warn("a client refused a response", "client", x.Client.String(), "node", x.Node, "kind", x.Kind, "type", x.Type,
			"names", x.Names, "resources", x.Resources, "detail", x.Detail)
	}
}

func (r *reporter) unrenderable(typ, name string, reason error) {
	r.metrics.Unrenderable(typ)
	if r.sparse.first("unrenderable " + typ + name) {
		r.log.Error("a resource breaks a rule of its clients and was not sent", "type", typ, "name", name, "reason", reason)
	}
}
