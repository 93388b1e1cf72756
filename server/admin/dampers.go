package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

func damper(kind adminv1.DamperKind, end time.Time, format string, args ...any) *adminv1.Damper {
	return &adminv1.Damper{Kind: kind, Detail: fmt.Sprintf(format, args...), EndTime: stamp(end)}
}

// dampers hold back a change of the whole service.
func (j *subject) dampers() (out []*adminv1.Damper) {
	if j.found.Until.After(j.now) {
		out = append(out, damper(adminv1.DamperKind_DAMPER_KIND_WINDOW, j.found.Until, "%s", j.found.Why))
	}
	if v := j.view; v != nil && v.Guard.Tripped {
		out = append(out, damper(adminv1.DamperKind_DAMPER_KIND_GUARD, time.Time{}, "%s", guardDetail(v)))
	}
	if st := j.stance; st != nil && st.Braked {
		out = append(out, brakeDamper(st))
	}
	if r := j.found.Rollout; r != nil {
		out = append(out, damper(adminv1.DamperKind_DAMPER_KIND_CONTRACT_ROLLOUT, r.Next, "contract %s: %s", r.Contract, r.Detail))
	}
	if t := &j.found.Third; len(t.Kept) > 0 {
		out = append(out, damper(adminv1.DamperKind_DAMPER_KIND_CALLERS_THIRD, time.Time{},
			"callers' word holds out %d of %d members, which is the most it may alone (%d); %d more stay in until another class agrees",
			t.Out, t.Members, t.Most, len(t.Kept)))
	}
	return out
}

func brakeDamper(st *health.Stance) *adminv1.Damper {
	return damper(adminv1.DamperKind_DAMPER_KIND_BRAKE, time.Time{}, "%s; ends when a second class or probers of two other zones agree, or an operator releases it", st.BrakeDetail)
}

func guardDetail(v *views.View) string {
	return fmt.Sprintf("%d of %d members serve, the floor is %d %% (%s); ends when enough of them serve again",
		v.Guard.Serving, v.Guard.Members, v.Guard.Floor, zoneList(v.Guard.Zones))
}

// instanceDampers hold back a change of one instance.
func (j *subject) instanceDampers(x *health.Explanation) (out []*adminv1.Damper) {
	for k := range x.Holds {
		out = append(out, j.holdDamper(&x.Holds[k]))
	}
	if r := x.Retry; r != nil {
		out = append(out, damper(adminv1.DamperKind_DAMPER_KIND_RETURN_HOLD, r.Again, "%s ended its membership within its first ramp: admitted again at the earliest then", r.Rule))
	}
	if q := &x.Quarantine; x.Verdict.Quarantined {
		text := fmt.Sprintf("%d changes within %s", len(q.Flaps), q.Window)
		if j.lifted(&x.Verdict) {
			text += "; lifted by the guard, listed all the same"
		}
		out = append(out, damper(adminv1.DamperKind_DAMPER_KIND_QUARANTINE, q.Until, "%s", text))
	}
	if w := x.Waits; w != nil {
		out = append(out, j.waitDamper(w))
	}
	if r := x.Ramp; r != nil {
		text := fmt.Sprintf("at %d %% of the full weight, step %d of %d", r.Percent, r.Step, r.Steps)
		if r.HeldBy != "" {
			text += "; the next step waits: " + r.HeldBy
		}
		out = append(out, damper(adminv1.DamperKind_DAMPER_KIND_RAMP, r.Ends, "%s", text))
	}
	if m := j.member(x.Verdict.UID); m != nil && m.Listed && !x.Verdict.State.Serving() && j.view.Guard.Tripped {
		out = append(out, damper(adminv1.DamperKind_DAMPER_KIND_GUARD, time.Time{}, "listed all the same: %s", guardDetail(j.view)))
	}
	return out
}

// holdDamper says what a rule that took the instance out waits for.
func (j *subject) holdDamper(h *health.Hold) *adminv1.Damper {
	out := "out by " + h.Rule.String()
	if h.Detail != "" {
		out += " (" + h.Detail + ")"
	}
	if h.Until.IsZero() {
		return damper(adminv1.DamperKind_DAMPER_KIND_RETURN_HOLD, h.Until, "%s: the evidence is not good enough yet for the hold to run", out)
	}
	return damper(adminv1.DamperKind_DAMPER_KIND_RETURN_HOLD, h.Until, "%s: returns if the evidence stays as good as it is", out)
}

// waitDamper is a withdrawal that a rule asks for and that waits.
func (j *subject) waitDamper(w *health.WaitEvidence) *adminv1.Damper {
	kind := adminv1.DamperKind_DAMPER_KIND_BRAKE
	if w.What == health.WaitsThird {
		kind = adminv1.DamperKind_DAMPER_KIND_CALLERS_THIRD
	}
	return damper(kind, time.Time{}, "%s asks for its withdrawal, which has waited for %s: %s", w.Rule, rounded(j.now.Sub(w.Since)), w.Detail)
}

// asides are what was looked at and is not the cause, in a fixed order.
func (j *subject) asides(x *health.Explanation) (out []*adminv1.Aside) {
	v := &x.Verdict
	add := func(what, format string, args ...any) {
		out = append(out, &adminv1.Aside{What: what, Detail: fmt.Sprintf(format, args...)})
	}
	if j.view != nil && !j.view.Guard.Tripped {
		g := &j.view.Guard
		add("guard", "not tripped: %d of %d serve, the floor is %d %%", g.Serving, g.Members, g.Floor)
	}
	if q := &x.Quarantine; !v.Quarantined && v.Member && q.Changes > 0 {
		add("quarantine", "no: %s within %s, %d start one", changes(len(q.Flaps)), q.Window, q.Changes)
	}
	if !v.Overridden {
		add("override", "none")
	}
	j.leaseAside(x, add)
	if applying, declared := effects(x.Dependencies); applying == 0 && declared > 0 {
		add("dependencies", "none of %d has an effect now", declared)
	}
	if j.stance == nil || !j.stance.Braked {
		add("brake", "not engaged")
	}
	if j.found.Rollout == nil {
		add("contract", "no change of it is being rolled out")
	}
	return out
}

func changes(n int) string {
	if n == 1 {
		return "1 change"
	}
	return fmt.Sprintf("%d changes", n)
}

func effects(all []health.DependencyEffect) (applying, declared int) {
	for _, d := range all {
		if d.Applies {
			applying++
		}
		if d.Declared {
			declared++
		}
	}
	return applying, declared
}

// leaseAside speaks of the lease where it did not take the instance out.
func (j *subject) leaseAside(x *health.Explanation, add func(what, format string, args ...any)) {
	l, row := x.Lease, j.rows[x.Verdict.UID]
	switch {
	case l == nil && row != nil:
		add("lease", "none: source %s lists it", row.Source)
	case l == nil || x.Verdict.Rule == health.R1 || x.Verdict.OutBy == health.R1 || !l.Lapsed.IsZero():
	case l.Suspect:
		add("lease", "over for %s, and suspect: so many lapsed at once that it is not believed", rounded(j.now.Sub(l.Ends)))
	case l.Renewed.IsZero():
		add("lease", "valid: not renewed since the start, runs for another %s", rounded(l.Ends.Sub(j.now)))
	default:
		add("lease", "valid: renewed %s ago, runs for another %s", rounded(j.now.Sub(l.Renewed)), rounded(l.Ends.Sub(j.now)))
	}
}

// activeDampers is what holds changes back over the services.
type activeDampers struct {
	list        []*adminv1.ActiveDamper
	total       int
	quarantined int
}

const (
	// dampersShown bounds the dampers that a status names.
	dampersShown = 100
	// dampersWithin bounds the time that a status spends on looking for them.
	dampersWithin = 500 * time.Millisecond
)

// activeDampers looks at the region's brake, at the rollouts, at tripped guards,
// and at the evaluation of every service that has a member which is not listed:
// quarantines and callers' third always leave one. Where a shard does not answer
// in time the list is shorter.
func (s *Server) activeDampers(ctx context.Context, who identity.Principal, snap *views.Snapshot) (a activeDampers) {
	ctx, cancel := context.WithTimeout(ctx, dampersWithin)
	defer cancel()
	st := s.stance()
	braked := st != nil && st.Braked
	if braked && s.seesAll(who) {
		a.add(registry.Name{}, "", "", brakeDamper(st))
	}
	rollouts := make(map[registry.Name]bool)
	if s.cfg.Rollouts != nil {
		for _, n := range s.cfg.Rollouts() {
			rollouts[n] = true
		}
	}
	services := s.services(who)
	slices.SortFunc(services, func(a, b known) int { return a.name.Compare(b.name) })
	for _, k := range services {
		v := snap.Get(k.name)
		if v == nil || !braked && !rollouts[k.name] && !v.Guard.Tripped && !holdsBack(v) {
			continue
		}
		found, at, ok, err := s.looks.of(ctx, k.name)
		if err != nil {
			break
		}
		if ok {
			j := subject{name: k.name, view: v, found: found, now: at}
			a.service(&j)
		}
	}
	return a
}

// holdsBack says whether a member is kept from callers.
func holdsBack(v *views.View) bool {
	return slices.ContainsFunc(v.Members, func(m *views.Member) bool { return !m.Listed && !m.Draining })
}

// service adds the dampers of one service: those that hold back a change, not
// the holds and ramps that every return takes.
func (a *activeDampers) service(j *subject) {
	for _, d := range j.dampers() {
		if d.GetKind() != adminv1.DamperKind_DAMPER_KIND_WINDOW {
			a.add(j.name, "", "", d)
		}
	}
	for k := range j.found.Instances {
		x := &j.found.Instances[k]
		if x.Verdict.Quarantined {
			a.quarantined++
		}
		label := ""
		if m := j.member(x.Verdict.UID); m != nil {
			label = m.Label
		}
		for _, d := range j.instanceDampers(x) {
			switch d.GetKind() {
			case adminv1.DamperKind_DAMPER_KIND_QUARANTINE, adminv1.DamperKind_DAMPER_KIND_BRAKE, adminv1.DamperKind_DAMPER_KIND_CALLERS_THIRD:
				a.add(j.name, x.Verdict.UID.String(), label, d)
			}
		}
	}
}

func (a *activeDampers) add(service registry.Name, uid, label string, d *adminv1.Damper) {
	a.total++
	if len(a.list) == dampersShown {
		return
	}
	name := ""
	if !service.IsZero() {
		name = service.String()
	}
	a.list = append(a.list, &adminv1.ActiveDamper{Service: name, Uid: uid, Label: label, Damper: d})
}
