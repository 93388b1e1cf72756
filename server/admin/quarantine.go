package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/desired"
	"github.com/sightlinedev/sightline/server/paging"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

// Bounds of what is put on record, in characters: a justification, and what the
// attempt is about.
const (
	reasonAtMost = 500
	targetAtMost = 300
)

// ListQuarantines returns the instances in quarantine, by service and uid.
func (s *Server) ListQuarantines(ctx context.Context, req *adminv1.ListQuarantinesRequest) (*adminv1.ListQuarantinesResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	snap, err := s.complete()
	if err != nil {
		return nil, err
	}
	asked := scope{req.GetNamespace(), req.GetName()}
	if err := asked.check(); err != nil {
		return nil, err
	}
	if n := asked.service(); asked.name != "" {
		if svc, serves := s.row(n); !s.mayInspect(who, n, serves) || svc == nil {
			return nil, status.Hidden("service", n.String())
		}
	}
	var rows []paging.Keyed[*adminv1.QuarantinedInstance]
	for _, k := range s.services(who) {
		if !asked.covers(k.name) || allListed(snap.Get(k.name), k.instances) {
			continue
		}
		found, _, ok, err := s.looks.of(ctx, k.name)
		if err != nil {
			return nil, notInspected(err)
		}
		for i := range found.Instances {
			if x := &found.Instances[i]; ok && x.Verdict.Quarantined {
				q := s.quarantined(k.name, x)
				rows = append(rows, paging.Keyed[*adminv1.QuarantinedInstance]{Key: q.GetService() + "/" + q.GetUid(), Row: q})
			}
		}
	}
	page, next, err := paging.Cut(rows, "quarantines/"+req.GetNamespace()+"/"+req.GetName(), req.GetPageToken(), s.sizes.Of(req.GetPageSize()))
	if err != nil {
		return nil, err
	}
	return &adminv1.ListQuarantinesResponse{Quarantines: page, NextPageToken: next}, nil
}

// allListed reports whether a service's view shows that none of its instances is
// in quarantine: all are listed, and not because there are too few of them. Most
// services are so, and their shards need not be asked.
func allListed(v *views.View, instances int) bool {
	return v != nil && len(v.Members) == instances && !v.Guard.Tripped && v.Confidence != views.ConfidenceDegraded &&
		!slices.ContainsFunc(v.Members, func(m *views.Member) bool { return !m.Listed })
}

func (s *Server) quarantined(n registry.Name, x *health.Explanation) *adminv1.QuarantinedInstance {
	q := &adminv1.QuarantinedInstance{
		Service: n.String(), Uid: x.Verdict.UID.String(), State: stateOf(x.Verdict.State), Quarantine: quarantineOf(x),
	}
	s.cfg.Read(func(ix *registry.Index) {
		if row, live := ix.Instance(x.Verdict.UID); live {
			q.Label = row.Label
		}
	})
	return q
}

// release is one attempt to end a damper before its time: recorded before it
// has an effect, and also when it is refused.
type release struct {
	who            identity.Principal
	action, target string
	justification  string
}

// ReleaseQuarantine ends an instance's quarantine.
func (s *Server) ReleaseQuarantine(ctx context.Context, req *adminv1.ReleaseQuarantineRequest) (*adminv1.ReleaseQuarantineResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	n := registry.Name{Namespace: req.GetNamespace(), Service: req.GetName()}
	a := release{who, "ReleaseQuarantine", "instance/" + n.String() + "/" + req.GetInstance(), req.GetJustification()}
	if svc, serves := s.row(n); !s.mayInspect(who, n, serves) || svc == nil {
		return nil, s.refuse(ctx, a, status.Hidden("service", n.String()))
	}
	uid, ok := s.find(n, req.GetInstance())
	if !ok {
		return nil, s.refuse(ctx, a, status.Hidden("instance", n.String()+"/"+req.GetInstance()))
	}
	if err := a.check(); err != nil {
		return nil, s.refuse(ctx, a, err)
	}
	x, err := s.inspectOne(ctx, n, uid)
	if err != nil {
		return nil, err
	}
	if x == nil || !x.Verdict.Quarantined || s.cfg.ReleaseQuarantine == nil {
		return nil, s.refuse(ctx, a, nothingHeld(a.target, "it is not in quarantine"))
	}
	if err := s.record(ctx, a); err != nil {
		return nil, err
	}
	switch ok, err := s.cfg.ReleaseQuarantine(ctx, n, uid); {
	case err != nil:
		return nil, notInspected(err)
	case !ok:
		return nil, nothingHeld(a.target, "its quarantine has just ended")
	}
	return &adminv1.ReleaseQuarantineResponse{Quarantine: s.quarantined(n, x)}, nil
}

// ReleaseBrake lets pass what a source's brake, or the region's, holds back.
func (s *Server) ReleaseBrake(ctx context.Context, req *adminv1.ReleaseBrakeRequest) (*adminv1.ReleaseBrakeResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	a := release{who, "ReleaseBrake", "region", req.GetJustification()}
	if source := req.GetSource(); source != "" {
		a.target = "source/" + source
	}
	if err := a.check(); err != nil {
		return nil, s.refuse(ctx, a, err)
	}
	if req.GetSource() == "" {
		return s.releaseRegion(ctx, a)
	}
	if err := s.record(ctx, a); err != nil {
		return nil, err
	}
	held := s.cfg.ReleaseSource(req.GetSource())
	if held == 0 {
		return nil, nothingHeld(a.target, "its brake holds no removal")
	}
	return &adminv1.ReleaseBrakeResponse{Detail: fmt.Sprintf("%d held removals of %s go with its next complete list that still lacks them", held, req.GetSource())}, nil
}

func (s *Server) releaseRegion(ctx context.Context, a release) (*adminv1.ReleaseBrakeResponse, error) {
	st := s.stance()
	if st == nil || !st.Braked || s.cfg.ReleaseBrake == nil {
		return nil, s.refuse(ctx, a, nothingHeld(a.target, "the brake is not engaged"))
	}
	if err := s.record(ctx, a); err != nil {
		return nil, err
	}
	switch ok, err := s.cfg.ReleaseBrake(ctx); {
	case err != nil:
		return nil, notInspected(err)
	case !ok:
		return nil, nothingHeld(a.target, "the brake has just been released")
	}
	return &adminv1.ReleaseBrakeResponse{Detail: "the region's brake is released: " + st.BrakeDetail}, nil
}

// check refuses a justification that says nothing, or more than is kept.
func (a *release) check() error {
	switch text := strings.TrimSpace(a.justification); {
	case text == "":
		return status.Field(status.InvalidField, "justification", "required", "say why, for the audit log")
	case len([]rune(text)) > reasonAtMost:
		return status.Field(status.InvalidField, "justification", "length", fmt.Sprintf("more than %d characters", reasonAtMost))
	case strings.ContainsFunc(text, unicode.IsControl):
		return status.Field(status.InvalidField, "justification", "characters", "it holds a control character")
	}
	return nil
}

func (a *release) entry(allowed bool, reason string) desired.Record {
	return desired.Record{At: time.Now(), Actor: a.who.String(), Address: a.who.Addr.String(), Action: a.action, Target: clipped(a.target, targetAtMost),
		Allowed: allowed, Reason: clipped(reason, reasonAtMost)}
}

// clipped is a text as a log can hold it: a request may name anything.
func clipped(text string, most int) string {
	kept := make([]rune, 0, min(len(text), most))
	for _, r := range text {
		if len(kept) == most {
			return string(kept) + "…"
		}
		if unicode.IsControl(r) {
			r = '?'
		}
		kept = append(kept, r)
	}
	return string(kept)
}

// record makes the attempt durable, before its effect.
func (s *Server) record(ctx context.Context, a release) error {
	return s.keep(ctx, a.entry(true, strings.TrimSpace(a.justification)))
}

// refuse answers with a refusal that is on record.
func (s *Server) refuse(ctx context.Context, a release, refusal error) error {
	if err := s.keep(ctx, a.entry(false, grpcstatus.Convert(refusal).Message())); err != nil {
		return err
	}
	return refusal
}

func (s *Server) keep(ctx context.Context, r desired.Record) error {
	if err := s.cfg.Record(ctx, r); err != nil {
		return status.Errorf(status.StoreUnavailable, "the attempt cannot be audited, so it has no effect: %v", err)
	}
	return nil
}

// nothingHeld is the refusal of a release of what holds nothing.
func nothingHeld(target, why string) error {
	return status.Precondition(status.NothingHeld, "held", target, why)
}

// notInspected is the status of an evaluation that does not answer.
func notInspected(err error) error {
	return status.Errorf(status.Stopping, "the evaluation does not answer: %v", err)
}

// inspectOne asks the shard itself: something is decided by it.
func (s *Server) inspectOne(ctx context.Context, n registry.Name, uid registry.UID) (*health.Explanation, error) {
	found, ok, err := s.cfg.Inspect(ctx, n)
	if err != nil {
		return nil, notInspected(err)
	}
	for i := range found.Instances {
		if ok && found.Instances[i].Verdict.UID == uid {
			return &found.Instances[i], nil
		}
	}
	return nil, nil
}

// stance is what the region's observers make of themselves; nil: nothing.
func (s *Server) stance() *health.Stance {
	if s.cfg.Stance == nil {
		return nil
	}
	return s.cfg.Stance()
}

// flapsShown bounds the changes that are listed.
const flapsShown = 20

// quarantineOf is an instance's flap damping.
func quarantineOf(x *health.Explanation) *adminv1.QuarantineExplanation {
	q := &x.Quarantine
	out := &adminv1.QuarantineExplanation{
		Active: x.Verdict.Quarantined, Since: stamp(q.Since), EndTime: stamp(q.Until), Changes: uint32(max(len(q.Flaps), x.Verdict.Flaps)),
		Limit: uint32(q.Changes), Window: durationpb.New(q.Window), NextHold: durationpb.New(q.NextHold),
	}
	for _, f := range q.Flaps[max(0, len(q.Flaps)-flapsShown):] {
		out.History = append(out.History, &adminv1.FlapExplanation{Time: stamp(f.At), Serving: f.Serving, Rule: f.Rule.String()})
	}
	return out
}
