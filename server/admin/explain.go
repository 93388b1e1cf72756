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

// subject is what an explanation is put together from.
type subject struct {
	name     registry.Name
	contract registry.Contract
	rows     map[registry.UID]*registry.Instance
	view     *views.View // nil: nothing is published yet
	found    Inspection
	now      time.Time
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
	if j.found, ok, err = s.cfg.Inspect(ctx, n); err != nil {
		return nil, status.Errorf(status.Stopping, "the evaluation does not answer: %v", err)
	} else if !ok {
		return nil, status.Hidden("service", n.String()) // deleted meanwhile
	}
	j.view, j.now = snap.Get(n), time.Now()
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
	out := &adminv1.ServiceExplanation{Namespace: j.name.Namespace, Name: j.name.Service, Dampers: j.dampers()}
	if v := j.view; v != nil {
		head := headOf(v)
		out.EndpointVersion, out.ConfigVersion = head.GetEndpointVersion(), head.GetConfigVersion()
		out.Confidence, out.Guard, out.Contract = head.GetConfidence(), head.GetGuard(), head.GetContract()
	}
	for k := range j.found.Instances {
		x := &j.found.Instances[k]
		if only == 0 || x.Verdict.UID == only {
			out.Instances = append(out.Instances, j.instance(x))
		}
	}
	return out
}

// dampers hold back a change of the whole service.
func (j *subject) dampers() (out []*adminv1.Damper) {
	if j.found.Until.After(j.now) {
		out = append(out, &adminv1.Damper{
			Kind: adminv1.DamperKind_DAMPER_KIND_WINDOW, Detail: j.found.Why, EndTime: stamp(j.found.Until),
		})
	}
	if v := j.view; v != nil && v.Guard.Tripped {
		out = append(out, &adminv1.Damper{Kind: adminv1.DamperKind_DAMPER_KIND_GUARD, Detail: guardDetail(v)})
	}
	return out
}

func guardDetail(v *views.View) string {
	where := "region"
	if len(v.Guard.Zones) > 0 && v.Guard.Zones[0] != "" {
		where = "zones " + strings.Join(v.Guard.Zones, ", ")
	}
	return fmt.Sprintf("%d of %d members serve, the floor is %d %% (%s); ends when enough of them serve again",
		v.Guard.Serving, v.Guard.Members, v.Guard.Floor, where)
}

func (j *subject) instance(x *health.Explanation) *adminv1.InstanceExplanation {
	v := &x.Verdict
	out := &adminv1.InstanceExplanation{
		Uid: v.UID.String(), State: stateOf(v.State), Member: v.Member, Rule: v.Rule.String(),
		Detail: withLease(v.Detail, x.Lease, j.now), Since: stamp(v.Since), OutBy: v.OutBy.String(),
		Weight: v.Weight, Draining: v.Draining, Evidence: j.evidence(x),
	}
	if row := j.rows[v.UID]; row != nil {
		out.Label, out.BaseWeight = row.Label, row.Weight
	}
	m := j.member(v.UID)
	if m != nil {
		out.Weight, out.BaseWeight, out.Listed = m.Weight, m.BaseWeight, m.Listed
	}
	for _, h := range x.Holds {
		out.Dampers = append(out.Dampers, holdDamper(h))
	}
	if m != nil && m.Listed && !v.State.Serving() && j.view.Guard.Tripped {
		out.Dampers = append(out.Dampers, &adminv1.Damper{Kind: adminv1.DamperKind_DAMPER_KIND_GUARD,
			Detail: "listed all the same: " + guardDetail(j.view)})
	}
	return out
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

// holdDamper says what a rule that took the instance out waits for.
func holdDamper(h health.Hold) *adminv1.Damper {
	d := &adminv1.Damper{Kind: adminv1.DamperKind_DAMPER_KIND_RETURN_HOLD, EndTime: stamp(h.Until)}
	switch {
	case h.Until.IsZero():
		d.Detail = fmt.Sprintf("out by %s: the evidence is not good enough yet for the hold to run", h.Rule)
	default:
		d.Detail = fmt.Sprintf("out by %s: returns if the evidence stays as good as it is", h.Rule)
	}
	return d
}

// withLease adds what is known of the lease to a verdict's words: no evidence
// class speaks of it.
func withLease(detail string, l *health.LeaseEvidence, now time.Time) string {
	if l == nil {
		return detail
	}
	text := "not renewed since the start"
	if !l.Renewed.IsZero() {
		text = fmt.Sprintf("renewed %s ago", rounded(now.Sub(l.Renewed)))
	}
	if left := l.Ends.Sub(now); left > 0 {
		text += fmt.Sprintf(", runs for another %s", rounded(left))
	} else {
		text += fmt.Sprintf(", over for %s", rounded(-left))
	}
	return detail + "; lease: " + text
}

func rounded(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }

// evidence is what each class says, those that are not supplied too.
func (j *subject) evidence(x *health.Explanation) (out []*adminv1.ClassEvidence) {
	for _, c := range [...]registry.EvidenceClass{registry.ClassProbe, registry.ClassSelf, registry.ClassCallers} {
		e := &adminv1.ClassEvidence{
			EvidenceClass: registryv1.EvidenceClass(c) + 1,
			Supplied:      x.Verdict.Supplied.Has(c), Fresh: x.Verdict.Fresh.Has(c),
		}
		// The instance's own word is the only class that is evaluated, so it is
		// the primary one wherever it speaks.
		e.Primary = c == registry.ClassSelf && e.Fresh
		switch {
		case c == registry.ClassSelf && x.Self != nil:
			e.Reporters, e.NewestAge = 1, durationpb.New(j.now.Sub(x.Self.At))
			e.Detail = selfDetail(x, j.now)
		case !e.Supplied:
			e.Detail = "not supplied by the capability profile"
		default:
			e.Detail = silence(x.SilentAt[c], j.now)
		}
		out = append(out, e)
	}
	return out
}

func selfDetail(x *health.Explanation, now time.Time) string {
	text := x.Self.Status.String()
	if len(x.Self.Degraded) > 0 {
		text += ", calls degraded: " + strings.Join(x.Self.Degraded, ", ")
	}
	if at, ok := x.SilentAt[registry.ClassSelf]; ok && !at.After(now) {
		text += "; " + silence(at, now)
	}
	return text
}

func silence(at, now time.Time) string {
	if at.After(now) {
		return fmt.Sprintf("not heard; silent in %s", rounded(at.Sub(now)))
	}
	return fmt.Sprintf("silent for %s", rounded(now.Sub(at)))
}
