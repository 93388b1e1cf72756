package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sightlinedev/sightline/dns"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/svid"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/reconcile"
	"github.com/sightlinedev/sightline/registry/source/file"
	"github.com/sightlinedev/sightline/server/desired"
	"github.com/sightlinedev/sightline/server/metrics"
	"github.com/sightlinedev/sightline/server/report"
	"github.com/sightlinedev/sightline/views"
	"github.com/sightlinedev/sightline/views/store"
)

// reporter turns what the parts tell into metrics and log lines: one line per
// transition, none per sample, and at most one a minute for what strangers can
// cause at will.
type reporter struct {
	log     *slog.Logger
	metrics *metrics.Metrics
	sparse  *perMinute[string]
	knocks  *perMinute[string] // of handshakes: whoever has no identity must not silence the rest
	owners  *owners            // nil: nobody is told of incidents

	mu      sync.Mutex
	broken  []brokenRow            // rows that could not be read at the start
	rolling map[registry.Name]bool // services whose changed contract is on its way
}

func newReporter(log *slog.Logger, version, build string, snapshot func() *views.Snapshot) *reporter {
	return &reporter{log: log, sparse: newPerMinute[string](), knocks: newPerMinute[string](), rolling: make(map[registry.Name]bool),
		metrics: metrics.New(version, build, func() metrics.Census { return census(snapshot()) })}
}

// census counts the views of one moment.
func census(s *views.Snapshot) metrics.Census {
	c := metrics.Census{Version: s.Version().Seq, Services: s.Len(), Complete: s.Complete(), Instances: map[string]int{}}
	for _, st := range []views.State{views.Unknown, views.Eligible, views.Degraded, views.Ineligible} {
		c.Instances[st.String()] = 0
	}
	for v := range s.All() {
		if v.Guard.Tripped {
			c.GuardsTripped++
		}
		if v.Confidence == views.ConfidenceSingleClass {
			c.SingleClass++
		}
		for _, m := range v.Members {
			c.Instances[m.State.String()]++
		}
	}
	return c
}

// The server's own life.

func (r *reporter) listening(a Addrs, id identity.ID) {
	r.log.Info("listening", "xds", a.XDS.String(), "api", a.API.String(), "dns", a.DNS.String(), "http", a.HTTP.String(), "identity", id.String())
}

func (r *reporter) ready(ready bool) {
	if ready {
		r.log.Info("ready")
	} else {
		r.log.Info("not ready")
	}
}

func (r *reporter) stopping(why string) { r.log.Info("stopping", "why", why) }

// Identity.

func (r *reporter) identityEvents() svid.Events { return svid.Events{Rotated: r.rotated, Kept: r.kept} }

func (r *reporter) rotated(id identity.ID, notAfter time.Time) {
	r.metrics.SVIDEnds(notAfter)
	r.log.Info("identity in force", "identity", id.String(), "until", notAfter.UTC().Format(time.RFC3339))
}

func (r *reporter) kept(reason error) {
	r.metrics.SVIDKept()
	r.log.Warn("new identity documents are not usable, the last good ones stay", "reason", reason)
}

func (r *reporter) recheckEnded(n int) {
	r.log.Warn("connections ended: their peers' identities are not good any more", "connections", n)
}

// Connections and calls.

func (r *reporter) gateEvents() gateEvents {
	return gateEvents{handshake: r.handshake, connections: r.metrics.Connections}
}

func (r *reporter) handshake(port string, remote net.Addr, err error) {
	var refused *svid.RefusedError
	switch {
	case err == nil:
		r.metrics.Handshake(port, "ok")
		return
	case errors.As(err, &refused):
		r.metrics.Handshake(port, "refused")
	default:
		r.metrics.Handshake(port, "broken")
	}
	from := svid.AddrOf(remote).String()
	if r.knocks.first(port + " " + from) {
		r.log.Warn("handshake failed", "port", port, "from", from, "reason", err)
	}
}

func (r *reporter) guardEvents() guardEvents {
	return guardEvents{
		refused: func(method string, who identity.Principal, reason, rule string) {
			r.metrics.CallRefused(reason)
			key, tell := "call "+reason+" "+who.String(), r.sparse
			switch {
			case who.ID.IsZero():
				tell = r.knocks
			case reason == "denied": // such a method has a row, so there are few
				key += " " + method
			}
			if tell.first(key) {
				r.log.Warn("call refused", "method", method, "caller", who.String(), "from", who.Addr.String(), "rule", rule)
			}
		},
		panicked: func(method string, who identity.Principal, value string, stack []byte) {
			r.metrics.Panicked()
			r.log.Error("a handler panicked; its call ended, the server goes on", "method", method, "caller", who.String(), "value", value, "stack", string(stack))
		},
	}
}

func (r *reporter) dnsEvents() dns.Events {
	return dns.Events{Answered: r.metrics.DNSAnswered, Refused: r.metrics.DNSRefused}
}

// Evidence.

var classNames = [...]string{registry.ClassProbe: "probe", registry.ClassSelf: "self", registry.ClassCallers: "callers"}

func (r *reporter) reportEvents() report.Events {
	return report.Events{
		Samples: func(c registry.EvidenceClass, result report.Result, n int) {
			r.metrics.Reports(classNames[c], result.String(), n)
		},
		Unattributed: func(who identity.Principal, rule string) {
			if r.sparse.first("report " + who.String() + " " + rule) {
				r.log.Warn("reports are dropped", "reporter", who.String(), "from", who.Addr.String(), "rule", rule)
			}
		},
		ProberCame: func(p registry.Prober, n int) {
			r.metrics.Probers(n)
			r.log.Info("a prober is at work", "prober", p.Name, "zone", p.Zone, "probers", n)
		},
		ProberWent: func(p registry.Prober, n int) {
			r.metrics.Probers(n)
			r.log.Warn("a prober is not at work any more: its targets go to others", "prober", p.Name, "zone", p.Zone, "probers", n)
		},
	}
}

// observerIncident tells of blind probers, dead zones and the brake: when an
// episode begins, and when it is over.
func (r *reporter) notProved(uid registry.UID, err error) {
	if r.sparse.first("proof " + uid.String()) {
		r.log.Warn("a proved address could not be written; it will be dialled back again", "instance", uid.String(), "reason", err)
	}
}

// Desired state and the store.

// brokenRow is an alarm that lasts while still holds; nil: until the next start.
type brokenRow struct {
	text  string
	still func() bool
}

func (r *reporter) rowUnreadable(what, why string, still func() bool) {
	r.metrics.Incident("row-unreadable")
	r.mu.Lock()
	r.broken = append(r.broken, brokenRow{"stored row " + what + " cannot be read: " + why, still})
	r.mu.Unlock()
	r.log.Error("a stored row cannot be read; its service keeps its last good state", "row", what, "reason", why, "code", "SL6003")
}

// unreadable lists the rows that rowUnreadable was told of and that nobody has
// written anew.
func (r *reporter) unreadable() (all []string) {
	r.mu.Lock()
	broken := slices.Clone(r.broken)
	r.mu.Unlock()
	for _, b := range broken {
		if b.still == nil || b.still() {
			all = append(all, b.text)
		}
	}
	return all
}

func (r *reporter) computedLost(what string, damaged int, err error) {
	if err == nil && damaged == 0 {
		return
	}
	r.log.Warn("computed state is lost and will be rebuilt", "what", what, "damaged", damaged, "reason", err)
}

func (r *reporter) storeState(st store.Status) {
	r.metrics.StoreState(st.State.String(), store.Writable.String(), store.Full.String(), store.Frozen.String())
	if st.State != store.Writable {
		r.log.Error("the store takes no writes; views go on", "state", st.State.String(), "operation", st.Op, "path", st.Path, "reason", st.Err)
	}
}

func (r *reporter) writerEvents() desired.Events {
	return desired.Events{
		Unacknowledged: func(k desired.Kind) {
			r.metrics.Unacknowledged(k.String())
			if r.sparse.first("unacknowledged " + k.String()) {
				r.log.Warn("a write was answered before it was known to be durable", "reason", k.String())
			}
		},
		Pending:    r.metrics.PendingRemovals,
		Reconciled: r.reconciled,
	}
}

func (r *reporter) held(owner string, held []file.Held) {
	r.metrics.HeldFiles(owner, len(held))
	for _, h := range held {
		if r.sparse.first("held " + owner + h.File + h.Why) {
			r.log.Warn("a manifest is not used; what it gave earlier stays", "source", owner, "file", h.File, "objects", h.Gave, "reason", h.Why)
		}
	}
}

func (r *reporter) notReconciled(owner string, err error) {
	if r.sparse.first("reconcile " + owner) {
		r.log.Warn("a source's list is not applied; it will be handed on again", "source", owner, "reason", err)
	}
}

func (r *reporter) notRemoved(n registry.Name, uid registry.UID, err error) {
	if r.sparse.first("remove " + n.String()) {
		r.log.Warn("a lapsed instance could not be removed; it will be tried again", "service", n.String(), "instance", uid.String(), "reason", err)
	}
}

// Publications.

// kindNames are the kinds of change as the metric's label.
var kindNames = [...]struct {
	kind views.Kinds
	name string
}{
	{views.Withdraw, "withdraw"}, {views.Admit, "admit"}, {views.Reweight, "reweight"}, {views.GuardChange, "guard"},
	{views.Reconfigure, "reconfigure"}, {views.Restate, "restate"},
}

func (r *reporter) published(p views.Publication) {
	for _, k := range kindNames {
		if p.Kinds&k.kind != 0 {
			r.metrics.ViewChanged(k.name)
		}
	}
}

func (r *reporter) publisherEvents() views.PublisherEvents {
	return views.PublisherEvents{
		ShedBegan: func(_ time.Time, window time.Duration) {
			r.metrics.ShedBegan()
			r.log.Warn("additions are held back: the fan-out is slow", "window", window)
		},
		ShedEnded: func(_ time.Time, lasted time.Duration) {
			r.metrics.ShedEnded(lasted)
			r.log.Info("additions are prompt again", "lasted", lasted)
		},
		BeyondReserved: func(seq uint64) {
			r.log.Warn("versions go beyond what is reserved on disk; the epoch keeps them unique", "seq", seq)
		},
	}
}

func count(serving, members int, floor uint32) string {
	return fmt.Sprintf("%d of %d serve, the floor is %d %%", serving, members, floor)
}

// reconciled logs a pass that did or held something.
func (r *reporter) reconciled(d reconcile.Decision, refused map[int]error) {
	r.metrics.Reconciled(d.Source, "applied", len(d.Apply)-len(refused))
	r.metrics.Reconciled(d.Source, "refused", len(refused))
	r.metrics.Reconciled(d.Source, "held", len(d.Held))
	switch {
	case len(d.Held) > 0:
		if r.sparse.first("brake " + d.Source + string(d.Rule)) {
			r.log.Warn("a source's removals are held", "source", d.Source, "rule", string(d.Rule), "held", len(d.Held), "reason", d.Detail)
		}
	case len(d.Apply) > len(refused):
		r.log.Info("a source's list was applied", "source", d.Source, "rule", string(d.Rule), "changes", len(d.Apply)-len(refused), "detail", d.Detail)
	}
	for i, err := range refused {
		if key := "refused " + d.Source + err.Error(); r.sparse.first(key) {
			r.log.Warn("a change of a source is refused", "source", d.Source, "change", fmt.Sprintf("%T", d.Apply[i]), "reason", err)
		}
	}
}
