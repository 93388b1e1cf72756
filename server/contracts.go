package server

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/admin"
	"github.com/sightlinedev/sightline/server/shard"
)

// rollout logs a step of a changed contract. One that is refused is an incident:
// whoever changed it should hear that it is not in effect, and what it would have
// withdrawn.
func (r *reporter) rollout(n registry.Name, c shard.Rollout) {
	r.mu.Lock()
	if r.rolling[n] = true; c.State == shard.RolloutDone {
		delete(r.rolling, n)
	}
	r.mu.Unlock()
	if c.State == shard.RolloutRefused {
		r.incident("contract-refused", n.String(), "", c.Detail)
		return
	}
	r.log.Info("a changed contract is rolled out", "service", n.String(), "contract", c.Contract.String(), "revision", c.Revision,
		"state", c.State.String(), "zones", c.Zones, "detail", c.Detail)
}

// rollouts lists the services whose changed contract is not in effect, or not
// everywhere; some may be gone.
func (r *reporter) rollouts() []registry.Name {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.rolling))
}

// adminRollout is a service's rollout in admin's own type.
func adminRollout(r *shard.Rollout) *admin.Rollout {
	if r == nil {
		return nil
	}
	states := map[shard.RolloutState]admin.RolloutState{
		shard.RolloutShadow: admin.RolloutShadow, shard.RolloutZones: admin.RolloutZones, shard.RolloutRefused: admin.RolloutRefused,
	}
	return &admin.Rollout{
		State: states[r.State], Contract: r.Contract, Revision: r.Revision, Since: r.Since, Next: r.Next,
		Zones: r.Zones, ZonesTotal: r.ZonesTotal, WouldWithdraw: r.WouldWithdraw, Members: r.Members, Detail: r.Detail,
	}
}

// testContract holds a draft against the recorded minutes, in admin's own types.
func (s *Server) testContract(ctx context.Context, n registry.Name, draft registry.Contract, since time.Duration) (admin.ContractTrial, error) {
	t, err := s.shards.TestContract(ctx, n, draft, since)
	if err != nil {
		return admin.ContractTrial{}, err
	}
	out := admin.ContractTrial{
		From: t.From, To: t.To, Minutes: t.Minutes, Missing: t.Missing, Instances: t.Instances,
		Peak: admin.TrialPeak(t.Peak), Caveats: t.Caveats,
	}
	for _, c := range t.Changes {
		out.Changes = append(out.Changes, admin.TrialChange{
			UID: c.UID, From: c.From, To: c.To, Live: admin.TrialVerdict(c.Live), Draft: admin.TrialVerdict(c.Draft),
		})
	}
	for _, g := range t.Guards {
		out.Guards = append(out.Guards, admin.TrialGuard(g))
	}
	return out, nil
}
