package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/health"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

// keptShown bounds the members named that stay in because of callers' third.
const keptShown = 100

// subject is what an explanation is put together from.
type subject struct {
	name     registry.Name
	contract registry.Contract
	rows     map[registry.UID]*registry.Instance
	view     *views.View // nil: nothing is published yet
	found    Inspection
	stance   *health.Stance
	clients  *adminv1.ClientCounts
	now      time.Time
	dialBack func(registry.UID) (DialBack, bool) // nil: nobody is dialled back
}

// Explain says why a service and its instances stand as they do.
func (s *Server) Explain(ctx context.Context, req *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	snap, err := s.complete()
	if err != nil {
		return nil, err
	}
	n := registry.Name{Namespace: req.GetNamespace(), Service: req.GetName()}
	j, ok := s.subject(n)
	if !s.mayInspect(who, n, j.contract.Identities) || !ok {
		return nil, status.Hidden("service", n.String())
	}
	var only registry.UID
	if ref := req.GetInstance(); ref != "" {
		if only, ok = s.find(n, ref); !ok {
			return nil, status.Hidden("instance", n.String()+"/"+ref)
		}
	}
	if j.found, j.now, ok, err = s.looks.of(ctx, n); err != nil {
		return nil, notInspected(err)
	} else if !ok {
		return nil, status.Hidden("service", n.String()) // deleted meanwhile
	}
	j.view, j.stance, j.clients = snap.Get(n), s.stance(), s.holders(who, n)
	j.dialBack = s.cfg.DialBack
	return &adminv1.ExplainResponse{Service: j.explain(only)}, nil
}

func (s *Server) subject(n registry.Name) (j subject, ok bool) {
	j = subject{name: n, rows: make(map[registry.UID]*registry.Instance)}
	s.cfg.Read(func(ix *registry.Index) {
		var svc *registry.Service
		if svc, ok = ix.Service(n); !ok {
			return
		}
		j.contract = ix.EffectiveContract(svc)
		for _, i := range ix.Instances(n) {
			j.rows[i.UID] = i
		}
	})
	return j, ok
}

func (j *subject) explain(only registry.UID) *adminv1.ServiceExplanation {
	out := &adminv1.ServiceExplanation{
		Namespace: j.name.Namespace, Name: j.name.Service, Time: stamp(j.now), Dampers: j.dampers(),
		Counts: &adminv1.InstanceCounts{}, Clients: j.clients, Rollout: rolloutOf(j.found.Rollout), Brake: j.brake(), CallersThird: j.third(),
	}
	if v := j.view; v != nil {
		head := headOf(v)
		out.EndpointVersion, out.ConfigVersion = head.GetEndpointVersion(), head.GetConfigVersion()
		out.Confidence, out.Guard, out.Contract = head.GetConfidence(), head.GetGuard(), head.GetContract()
	}
	var supplied registry.ClassSet
	for k := range j.found.Instances {
		x := &j.found.Instances[k]
		supplied |= x.Verdict.Supplied
		countVerdict(out.Counts, &x.Verdict)
		if only == 0 || x.Verdict.UID == only {
			out.Instances = append(out.Instances, j.instance(x))
		}
	}
	for _, c := range classes {
		if supplied.Has(c) {
			out.Supplied = append(out.Supplied, classOf(c))
		}
	}
	return out
}

func countVerdict(c *adminv1.InstanceCounts, v *health.Verdict) {
	if !v.Member {
		c.Unadmitted++
		return
	}
	if v.Draining {
		c.Draining++
	}
	switch v.State {
	case health.Eligible:
		c.Eligible++
	case health.Degraded:
		c.Degraded++
	case health.Ineligible:
		c.Ineligible++
	case health.Unknown:
		c.Unknown++
	}
}

// brake is the region's brake while it is engaged.
func (j *subject) brake() *adminv1.BrakeExplanation {
	st := j.stance
	if st == nil || !st.Braked {
		return nil
	}
	return &adminv1.BrakeExplanation{Active: true, Since: stamp(st.BrakedSince), Detail: st.BrakeDetail, ReleasedZones: sortedKeys(st.Released)}
}

func sortedKeys(set map[string]bool) (keys []string) {
	for k, in := range set {
		if in {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// third is how much callers' word alone holds out, where it holds any.
func (j *subject) third() *adminv1.CallersThirdExplanation {
	t := &j.found.Third
	if t.Out == 0 && len(t.Kept) == 0 {
		return nil
	}
	out := &adminv1.CallersThirdExplanation{Out: uint32(t.Out), Most: uint32(t.Most), Members: uint32(t.Members)}
	for _, uid := range t.Kept[:min(len(t.Kept), keptShown)] {
		out.Kept = append(out.Kept, uid.String())
	}
	return out
}

func rolloutOf(r *Rollout) *adminv1.RolloutExplanation {
	if r == nil {
		return nil
	}
	return &adminv1.RolloutExplanation{
		State: adminv1.RolloutState(r.State) + 1, Contract: r.Contract.String(), Revision: r.Revision, Since: stamp(r.Since),
		NextTime: stamp(r.Next), Zones: r.Zones, ZonesTotal: uint32(r.ZonesTotal), WouldWithdraw: uint32(r.WouldWithdraw),
		Members: uint32(r.Members), Detail: r.Detail,
	}
}

func (j *subject) instance(x *health.Explanation) *adminv1.InstanceExplanation {
	v := &x.Verdict
	out := &adminv1.InstanceExplanation{
		Uid: v.UID.String(), State: stateOf(v.State), Member: v.Member, Rule: v.Rule.String(),
		Detail: v.Detail, Since: stamp(v.Since), OutBy: v.OutBy.String(),
		Weight: v.Weight, Draining: v.Draining, Overridden: v.Overridden, DegradedPercent: v.Kept,
		Quarantine: j.quarantine(x), Ramp: rampOf(x.Ramp), Dependencies: dependenciesOf(x.Dependencies), Returns: j.returns(x),
	}
	if row := j.rows[v.UID]; row != nil {
		out.Label, out.BaseWeight, out.Zone, out.Lease = row.Label, row.Weight, row.Zone, leaseOf(x.Lease, row.Lease)
	}
	if m := j.member(v.UID); m != nil {
		out.Weight, out.BaseWeight, out.Listed = m.Weight, m.BaseWeight, m.Listed
	}
	if !v.Member {
		out.Detail += j.unproved(v.UID)
	}
	for _, c := range classes {
		e := j.class(x, c)
		if e.Primary {
			out.Primary = e.GetEvidenceClass()
		}
		out.Evidence = append(out.Evidence, e)
	}
	out.NotTheCause, out.Dampers = j.asides(x), j.instanceDampers(x)
	return out
}

// unproved says what came of dialling an instance back, where that has to prove
// its address; it begins with a semicolon.
func (j *subject) unproved(uid registry.UID) string {
	if j.dialBack == nil {
		return ""
	}
	d, ok := j.dialBack(uid)
	switch {
	case !ok:
		return ""
	case !d.Turn:
		return "; its dial-back waits until others of its identity are proved or gone"
	case !d.At.IsZero():
		in := ""
		if d.Prober.Zone != "" {
			in = " in zone " + d.Prober.Zone
		}
		return fmt.Sprintf("; prober %s%s met another identity there %s ago", d.Prober.Name, in, rounded(j.now.Sub(d.At)))
	case d.Probers == 0:
		return "; a prober has to meet its identity there, and none is at work"
	}
	return "; probers dial it back, and none has met its identity there yet"
}

func (j *subject) member(uid registry.UID) *views.Member {
	if j.view == nil {
		return nil
	}
	k, ok := slices.BinarySearchFunc(j.view.Members, uid, func(m *views.Member, uid registry.UID) int {
		switch {
		case m.UID < uid:
			return -1
		case m.UID > uid:
			return 1
		}
		return 0
	})
	if !ok {
		return nil
	}
	return j.view.Members[k]
}

// lifted says whether the guard lists the instance in spite of its quarantine.
func (j *subject) lifted(v *health.Verdict) bool {
	m := j.member(v.UID)
	return v.Quarantined && m != nil && m.Listed
}

func leaseOf(l *health.LeaseEvidence, term time.Duration) *adminv1.LeaseExplanation {
	if l == nil {
		return nil
	}
	return &adminv1.LeaseExplanation{Term: durationpb.New(term), RenewedTime: stamp(l.Renewed), EndTime: stamp(l.Ends),
		LapsedTime: stamp(l.Lapsed), Suspect: l.Suspect}
}

func rampOf(r *health.RampEvidence) *adminv1.RampExplanation {
	if r == nil {
		return nil
	}
	return &adminv1.RampExplanation{Percent: r.Percent, Step: uint32(r.Step), Steps: uint32(r.Steps), NextTime: stamp(r.Next),
		EndTime: stamp(r.Ends), HeldBy: r.HeldBy, Trial: r.Trial}
}

func dependenciesOf(all []health.DependencyEffect) (out []*adminv1.DependencyExplanation) {
	for _, d := range all {
		out = append(out, &adminv1.DependencyExplanation{Name: d.Name, Shared: d.Shared, Authority: registryv1.DependencyAuthority(d.Authority) + 1, // both lists have the same order

			Degraded: d.Degraded, WeightPercent: d.Weight, Detail: dependencyDetail(&d)})
	}
	return out
}

func dependencyDetail(d *health.DependencyEffect) string {
	switch {
	case !d.Degraded:
		return "not degraded"
	case !d.Applies:
		return "degraded, without effect now: another rule decides"
	case d.Authority == registry.Informational:
		return "degraded, and only shown"
	case d.Authority == registry.Unreadiness:
		return "degraded: the instance is out"
	}
	text := fmt.Sprintf("degraded: the weight is kept at %d %%", d.Weight)
	if !d.Declared {
		text += " (the contract does not name it, so that is the default)"
	}
	return text
}

// quarantine is the instance's flap damping.
func (j *subject) quarantine(x *health.Explanation) *adminv1.QuarantineExplanation {
	q := quarantineOf(x)
	q.Lifted = j.lifted(&x.Verdict)
	return q
}

// returns says, for each rule that took the instance out, when that is over.
func (j *subject) returns(x *health.Explanation) (out []*adminv1.ReturnExplanation) {
	for _, h := range x.Holds {
		out = append(out, &adminv1.ReturnExplanation{Rule: h.Rule.String(), Since: stamp(h.Since), Time: stamp(h.Until),
			Trial: h.Trial, Detail: j.returnDetail(&h)})
	}
	if r := x.Retry; r != nil {
		out = append(out, &adminv1.ReturnExplanation{Rule: r.Rule.String(), Since: stamp(r.Since), Time: stamp(r.Again),
			Detail: fmt.Sprintf("its membership ended within its first ramp (%s in a row: %s); then it is admitted again at its first good evidence", times(r.Times), r.Detail)})
	}
	return out
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// returnDetail says what the return of a rule waits for (HEALTH.md §4).
func (j *subject) returnDetail(h *health.Hold) string {
	hold := j.contract.ReturnHold
	switch {
	case h.Rule == health.R4, h.Trial && !h.Until.IsZero():
		return "a trial at the first step of its ramp" + j.rampWords()
	case h.Rule == health.R1:
		return "one full term of renewals after the lapse, or the operator's clear" + j.rampWords()
	case h.Rule == health.R2:
		return fmt.Sprintf("%s of SERVING", hold) + j.rampWords()
	case h.Rule == health.R3 || h.Rule == health.R5:
		return fmt.Sprintf("%s of probes at or under their in-line", hold) + j.rampWords()
	}
	return fmt.Sprintf("%s of good evidence", hold) + j.rampWords()
}

func (j *subject) rampWords() string {
	if j.contract.Ramp == 0 {
		return ", then full weight at once"
	}
	return fmt.Sprintf(", then the ramp over %s", j.contract.Ramp)
}

// zoneList writes zones for a person.
func zoneList(zones []string) string {
	if len(zones) == 0 || zones[0] == "" {
		return "region"
	}
	return "zones " + strings.Join(zones, ", ")
}
