package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	"github.com/sightlinedev/sightline/views"
)

// shownGuards is how many tripped guards a status names.
const shownGuards = 100

// GetStatus returns the state of this server, also while it starts. What it
// counts is what the caller may see.
func (s *Server) GetStatus(ctx context.Context, _ *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	snap, p := s.cfg.Snapshot(), s.cfg.Process
	st := &adminv1.Status{
		Version: p.Version, Region: p.Region, Zone: p.Zone, StartTime: stamp(p.Started),
		Epoch: snap.Version().Epoch, HeadVersion: snap.Version().String(),
		Ready: true, Store: s.store(), Shed: s.shed(), Clients: s.countClients(who),
	}
	for _, c := range s.cfg.Checks() {
		st.Checks = append(st.Checks, &adminv1.Check{Name: c.Name, Ok: c.Why == "", Reason: c.Why})
		st.Ready = st.Ready && c.Why == ""
	}
	if s.cfg.Alarms != nil && s.seesAll(who) {
		st.Alarms = s.cfg.Alarms()
	}
	s.countViews(st, who, snap)
	held := s.activeDampers(ctx, who, snap)
	st.Dampers, st.DampersTotal, st.Quarantined = held.list, uint32(held.total), uint32(held.quarantined)
	return &adminv1.GetStatusResponse{Status: st}, nil
}

// countViews fills in what is counted over services.
func (s *Server) countViews(st *adminv1.Status, who identity.Principal, snap *views.Snapshot) {
	counts := &adminv1.InstanceCounts{}
	for _, k := range s.services(who) {
		st.Services++
		v := snap.Get(k.name)
		if v == nil {
			counts.Unadmitted += uint32(k.instances)
			continue
		}
		// The rows may have moved on since the view.
		counts.Unadmitted += uint32(max(k.instances-countMembers(counts, v), 0))
		if v.Confidence == views.ConfidenceExistenceOnly || v.Confidence == views.ConfidenceSingleClass {
			st.SingleClassServices++
		}
		if v.Guard.Tripped {
			st.Guards = append(st.Guards, guardOf(v))
		}
	}
	st.Instances = counts
	st.GuardsTripped = uint32(len(st.Guards))
	slices.SortFunc(st.Guards, func(a, b *adminv1.TrippedGuard) int { return strings.Compare(a.Service, b.Service) })
	st.Guards = st.Guards[:min(len(st.Guards), shownGuards)]
}

// countMembers counts a view's members by state. Unadmitted instances that
// stand in where a service has nothing else left are none.
func countMembers(c *adminv1.InstanceCounts, v *views.View) (members int) {
	for _, m := range v.Members {
		if m.Evidence.Rule == health.Admission.String() {
			continue
		}
		members++
		switch m.State {
		case views.Eligible:
			c.Eligible++
		case views.Degraded:
			c.Degraded++
		case views.Ineligible:
			c.Ineligible++
		case views.Unknown:
			c.Unknown++
		}
		if m.Draining {
			c.Draining++
		}
	}
	return members
}

func guardOf(v *views.View) *adminv1.TrippedGuard {
	return &adminv1.TrippedGuard{
		Service: v.Name.String(), Zones: v.Guard.Zones, FloorPercent: v.Guard.Floor,
		Serving: uint32(v.Guard.Serving), Members: uint32(v.Guard.Members),
	}
}

func (s *Server) store() *adminv1.Store {
	held := s.cfg.Store()
	out := &adminv1.Store{State: adminv1.StoreState_STORE_STATE_OK, Since: stamp(held.Since)}
	if held.Frozen {
		out.State, out.Reason = adminv1.StoreState_STORE_STATE_FROZEN, held.Reason
	}
	return out
}

func (s *Server) shed() *adminv1.Shed {
	window, since := s.cfg.Shedding()
	if since.IsZero() {
		return &adminv1.Shed{}
	}
	return &adminv1.Shed{Active: true, Since: stamp(since),
		Reason: fmt.Sprintf("additions wait %s: the last change took half of that to reach every client", window.Round(time.Millisecond))}
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
