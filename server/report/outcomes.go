package report

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/status"
)

const (
	// reportInterval is how often callers report.
	reportInterval = 2 * time.Second
	// longestInterval is the longest that a report may cover, 2.5 times the
	// usual one: a backlog after an outage would condemn instances that were
	// repaired meanwhile (HEALTH.md §2).
	longestInterval = 5 * reportInterval / 2
)

// outcomeStream is one stream of callers' outcomes; owned by its handler.
//
// A batch is cut by service: each service that the stream has bound instances
// of has a slot with the memory of its part. Whoever reports is in speakers:
// the stream's own identity first, then those that an agent bound.
type outcomeStream struct {
	service  *Service
	who      identity.Principal
	frame    outcomeFrame
	bound    []boundInstance
	slots    []*slot
	bySlot   map[registry.Name]int
	speakers []speaker
	touched  []int // slots that the batch at hand has entries for
	room     int   // entries that slots have room for
	budget   *rate.Limiter
	tally    *healthv1.Tally
}

// boundInstance is an id on a stream, and the slot of its service; below zero:
// it was not known when it was bound.
type boundInstance struct {
	uid  registry.UID
	slot int
}

// slot is one service's part of a stream.
type slot struct {
	name registry.Name
	out  health.Outcomes
	room int // entries, as counted in the stream's
}

// keptCounts is for how many entries a stream keeps room between batches, in all
// its slots: what many services have of one large batch each would add up.
const keptCounts = 2 * keptEntries

// speaker is whom outcomes are counted for.
type speaker struct {
	as       health.Reporter
	resolves identity.Principal // whose right to resolve a service counts
	attested bool
	scopes   []scope // by slot, as far as asked
}

// scope is the answer of a policy; another policy is asked again.
type scope struct {
	by      *authz.Policy
	allowed bool
}

// ReportOutcomes takes callers' outcomes until the stream ends, and answers
// with what became of them.
func (s *Service) ReportOutcomes(conn grpc.ClientStreamingServer[healthv1.ReportOutcomesRequest, healthv1.ReportOutcomesResponse]) error {
	who, leave, err := s.admit(conn.Context())
	if err != nil {
		return err
	}
	defer leave()
	st := s.newOutcomeStream(who)
	for first := true; ; first = false {
		err := conn.RecvMsg(&st.frame)
		switch {
		case errors.Is(err, io.EOF):
			return conn.SendAndClose(&healthv1.ReportOutcomesResponse{Tally: st.tally})
		case err != nil:
			return err
		}
		if err := st.take(time.Now(), first); err != nil {
			return err
		}
	}
}

func (s *Service) newOutcomeStream(who identity.Principal) *outcomeStream {
	return &outcomeStream{
		service: s, who: who, bySlot: make(map[registry.Name]int), tally: &healthv1.Tally{},
		frame:    outcomeFrame{limit: s.cfg.Limits.MaxMessageBytes},
		speakers: []speaker{{as: health.Reporter{Identity: who.ID, Addr: who.Addr}, resolves: who, attested: true}},
		budget:   rate.NewLimiter(rate.Limit(s.cfg.Limits.Rate), s.cfg.Limits.Burst),
	}
}

func (st *outcomeStream) take(now time.Time, first bool) error {
	switch f := &st.frame; {
	case f.size > f.limit:
		return tooLarge(f.limit, f.size)
	case f.kind == frameBind:
		return st.bind(&f.bind)
	case f.kind != frameBatch:
		return noFrame()
	case first:
		return bindFirst()
	}
	return st.batch(now)
}

// bind appends ids. What cannot be read ends the stream; an instance that is
// not known, and a reporter that the caller may not speak for, stay bound to
// nothing.
func (st *outcomeStream) bind(b *healthv1.OutcomeBind) error {
	limit := st.service.cfg.Limits.Callees
	if n := max(len(st.bound)+len(b.GetInstances()), len(st.speakers)-1+len(b.GetReporters())); n > limit {
		return status.Limit("Reports.Callees", fmt.Sprintf("%d ids on one stream", limit))
	}
	for i, text := range b.GetInstances() {
		uid, err := registry.ParseUID(text)
		if err != nil {
			return status.Field(status.InvalidField, fmt.Sprintf("bind.instances[%d]", i), "uid", err.Error())
		}
		at := boundInstance{uid: uid, slot: -1}
		if row, ok := st.service.cfg.Lookup(uid); ok {
			at.slot = st.slotOf(row.Service)
		}
		st.bound = append(st.bound, at)
	}
	for i, text := range b.GetReporters() {
		uid, err := registry.ParseUID(text)
		if err != nil {
			return status.Field(status.InvalidField, fmt.Sprintf("bind.reporters[%d]", i), "uid", err.Error())
		}
		st.speakers = append(st.speakers, st.attest(uid))
	}
	return nil
}

func (st *outcomeStream) slotOf(n registry.Name) int {
	k, had := st.bySlot[n]
	if !had {
		k = len(st.slots)
		st.bySlot[n] = k
		st.slots = append(st.slots, &slot{name: n})
	}
	return k
}

// attest finds out whether the caller may speak for an instance. A workload
// speaks for itself alone, and as itself: it must not become several reporters
// by naming its copies.
func (st *outcomeStream) attest(uid registry.UID) speaker {
	attested := st.service.cfg.Attested
	if st.who.Class() != identity.Agent || attested == nil {
		st.service.unattributed(st.who, "only an agent speaks for others, and only for instances that it attested")
		return speaker{}
	}
	id, ok := attested(st.who, uid)
	if !ok {
		st.service.unattributed(st.who, "the agent has not attested the reporter")
		return speaker{}
	}
	return speaker{attested: true, as: health.Reporter{Identity: id, Instance: uid}, resolves: identity.Principal{ID: id, Addr: st.who.Addr}}
}

// batch cuts the frame's columns by service and hands each part on.
func (st *outcomeStream) batch(now time.Time) error {
	interval, err := st.checkBatch()
	if err != nil {
		return err
	}
	n := len(st.frame.column[columnInstance])
	switch {
	case interval > longestInterval:
		st.service.count(st.tally, registry.ClassCallers, Stale, n)
		return nil
	case !st.budget.AllowN(now, 1):
		st.service.count(st.tally, registry.ClassCallers, Limited, n)
		return nil
	}
	st.speak(now, interval, n)
	st.trim()
	return nil
}

// speak hands the frame's n entries on, a run of each speaker's at a time.
func (st *outcomeStream) speak(now time.Time, interval time.Duration, n int) {
	reporter := st.frame.column[columnReporter]
	for from := 0; from < n; {
		to, speaks := n, 0
		if len(reporter) > 0 {
			// A run of entries of one reporter is one report.
			for to = from + 1; to < n && reporter[to] == reporter[from]; to++ {
			}
			speaks = int(reporter[from]) + 1
		}
		if by := st.speaker(speaks); by == nil {
			// Whom the entries are about makes no difference, not even whether there
			// is such an instance: nobody learns ids by a reporter that is not his.
			st.cut(from, to)
			st.service.count(st.tally, registry.ClassCallers, Unattributed, to-from)
			st.drop(now, interval)
		} else {
			st.service.hide(st.tally, registry.ClassCallers, Unattributed, st.cut(from, to))
			st.deliver(now, interval, by)
		}
		from = to
	}
}

// trim gives back the room of all slots where it is too much.
func (st *outcomeStream) trim() {
	if st.room <= keptCounts {
		return
	}
	for _, sl := range st.slots {
		sl.out.Entries, sl.room = nil, 0
	}
	st.room = 0
}

// speaker is who speaks at a position; nil: nobody for whom the caller may.
func (st *outcomeStream) speaker(at int) *speaker {
	if at >= len(st.speakers) || !st.speakers[at].attested {
		return nil
	}
	return &st.speakers[at]
}

// cut appends the entries from..to of the frame to the parts of their services,
// and returns how many are about instances that are not known.
func (st *outcomeStream) cut(from, to int) (unknown int) {
	c := &st.frame.column
	instance := c[columnInstance][from:to]
	issued, ok := c[columnIssued][from:to], c[columnOK][from:to]
	failed, refused, running := optional(c[columnFailed], from, to), optional(c[columnRefused], from, to), optional(c[columnInProgress], from, to)
	// Neighbours are of one service mostly: its part is at hand.
	var part *health.Outcomes
	slot := -1
	for i, at := range instance {
		if int(at) >= len(st.bound) || st.bound[at].slot < 0 {
			unknown++
			continue
		}
		b := &st.bound[at]
		if b.slot != slot {
			slot, part = b.slot, &st.slots[b.slot].out
			if len(part.Entries) == 0 {
				st.touched = append(st.touched, slot)
			}
		}
		e := health.Outcome{UID: b.uid, Issued: issued[i], OK: ok[i]}
		if i < len(failed) {
			e.Failed = failed[i]
		}
		if i < len(refused) {
			e.Refused = refused[i]
		}
		if i < len(running) {
			e.InProgress = running[i]
		}
		part.Entries = append(part.Entries, e)
	}
	return unknown
}

// optional is a part of a column that may be empty; nil when it is.
func optional(column []uint32, from, to int) []uint32 {
	if len(column) == 0 {
		return nil
	}
	return column[from:to]
}

// deliver hands on the parts that were cut, as the word of one speaker.
func (st *outcomeStream) deliver(now time.Time, interval time.Duration, by *speaker) {
	for _, k := range st.touched {
		sl := st.slots[k]
		o := &sl.out
		o.Reporter, o.Kind, o.At, o.Interval = by.as, health.FromLibrary, now, interval
		r := Accepted
		if !st.inScope(by, k) {
			r = OutOfScope
		} else {
			st.service.cfg.SubmitOutcomes(sl.name, o)
		}
		st.service.count(st.tally, registry.ClassCallers, r, len(o.Entries))
		st.service.showOutcomes(st.who, sl.name, o, r)
	}
	st.emptied()
}

// drop shows the parts that were cut, and does no more with them.
func (st *outcomeStream) drop(now time.Time, interval time.Duration) {
	for _, k := range st.touched {
		sl := st.slots[k]
		o := &sl.out
		o.Reporter = health.Reporter{Identity: st.who.ID, Addr: st.who.Addr}
		o.Kind, o.At, o.Interval = health.FromLibrary, now, interval
		st.service.showOutcomes(st.who, sl.name, o, Unattributed)
	}
	st.emptied()
}

// emptied ends a cut: its parts were dealt with.
func (st *outcomeStream) emptied() {
	for _, k := range st.touched {
		sl := st.slots[k]
		st.room += cap(sl.out.Entries) - sl.room
		sl.room, sl.out.Entries = cap(sl.out.Entries), sl.out.Entries[:0]
	}
	st.touched = st.touched[:0]
}

// inScope reports whether the speaker may resolve the service of a slot.
func (st *outcomeStream) inScope(by *speaker, k int) bool {
	for len(by.scopes) <= k {
		by.scopes = append(by.scopes, scope{})
	}
	policy := st.service.cfg.Policy()
	if s := &by.scopes[k]; s.by != policy || policy == nil {
		s.by, s.allowed = policy, st.service.mayResolve(policy, by.resolves, st.slots[k].name)
	}
	return by.scopes[k].allowed
}

// mayResolve asks the policy, and tells of a refusal.
func (s *Service) mayResolve(policy *authz.Policy, who identity.Principal, n registry.Name) bool {
	d := policy.CanResolve(who, authz.Service{Namespace: n.Namespace, Name: n.Service})
	if !d.Allowed && s.cfg.Events.OutOfScope != nil {
		s.cfg.Events.OutOfScope(who, n, d.Rule)
	}
	return d.Allowed
}

// checkBatch looks at the shape of the frame's batch.
func (st *outcomeStream) checkBatch() (time.Duration, error) {
	interval, ok := st.frame.length()
	if !ok {
		return 0, status.Field(status.InvalidField, "batch.interval", "duration", "the counts cover an interval above zero")
	}
	n := len(st.frame.column[columnInstance])
	for _, c := range [...]struct {
		column   int
		name     string
		optional bool
	}{
		{columnReporter, "reporter", true}, {columnIssued, "issued", false}, {columnOK, "ok", false},
		{columnFailed, "failed", true}, {columnRefused, "refused", true}, {columnInProgress, "in_progress", true},
	} {
		if has := len(st.frame.column[c.column]); has != n && (has > 0 || !c.optional) {
			return 0, unequal("batch."+c.name, n, has)
		}
	}
	return interval, nil
}

// SubmitOutcomes takes one report on instances of one service that came on
// another way than ReportOutcomes, such as LRS. It keeps none of o, of which
// Kind, Interval and Entries are the caller's; who reports and when is set
// here. The result is what became of all its entries.
func (s *Service) SubmitOutcomes(who identity.Principal, n registry.Name, o *health.Outcomes) Result {
	o.Reporter, o.At = health.Reporter{Identity: who.ID, Addr: who.Addr}, time.Now()
	r := Accepted
	switch {
	case who.ID.IsZero():
		r = Unattributed
	case o.Interval > longestInterval:
		r = Stale
	case !s.mayResolve(s.cfg.Policy(), who, n):
		r = OutOfScope
	default:
		s.cfg.SubmitOutcomes(n, o)
	}
	s.tell(registry.ClassCallers, r, len(o.Entries))
	s.showOutcomes(who, n, o, r)
	return r
}

func (s *Service) showOutcomes(who identity.Principal, n registry.Name, o *health.Outcomes, r Result) {
	if s.cfg.Events.Outcomes != nil {
		s.cfg.Events.Outcomes(who, n, o, r)
	}
}
