package shard

import (
	"bytes"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// What is judged beside hears what the service's own evaluator hears.

// evaluators calls f with each evaluator of the service.
func (s *service) evaluators(f func(*health.Evaluator)) {
	f(s.evaluator)
	if r := s.contracts.rollout; r != nil && r.beside != nil {
		f(r.beside)
	}
}

// gap says that nobody looked.
func (s *service) gap(now time.Time) {
	s.evaluators(func(e *health.Evaluator) { e.Gap(now) })
	s.judgeAt = now
}

// stand hands on what the region's observers make of themselves.
func (s *service) stand(now time.Time, st *health.Stance) {
	s.evaluators(func(e *health.Evaluator) { e.Stand(now, st) })
	s.judgeAt = now
}

// overhear gives what is beside the mail that the service has taken.
func (r *rollout) overhear(now time.Time, m *mail, samples []health.Sample) {
	if r == nil || r.beside == nil {
		return
	}
	for uid, at := range m.renewals {
		r.beside.Renew(at, uid)
	}
	if len(samples) > 0 {
		r.beside.Observe(now, samples)
	}
	for _, o := range m.outcomes {
		r.beside.ObserveOutcomes(now, o)
	}
}

// storedContract is what a checkpoint holds of a contract that is not in effect.
type storedContract struct {
	Active registry.Contract `json:"active"`
	// Refused is the contract that was refused, and why; nil: one is on its way,
	// and a start begins with its shadow anew.
	Refused            *registry.Contract `json:"refused,omitempty"`
	Since              time.Time          `json:"since,omitzero"`
	Withdraws, Members int                `json:",omitempty"`
	Detail             string             `json:"detail,omitempty"`
}

func (k *contracts) remember() *storedContract {
	r := k.rollout
	if r == nil {
		return nil
	}
	m := &storedContract{Active: k.active}
	if r.state == RolloutRefused {
		wanted := r.wanted
		m.Refused, m.Since, m.Withdraws, m.Members, m.Detail = &wanted, r.since, r.withdraws, r.members, r.detail
	}
	return m
}

// rollout is what becomes of the contract that is wanted at a start.
func (m *storedContract) rollout(now time.Time, wanted registry.Contract) *rollout {
	if m.Refused != nil && judgesAlike(*m.Refused, wanted) {
		return &rollout{wanted: wanted, state: RolloutRefused, since: m.Since, withdraws: m.Withdraws, members: m.Members, detail: m.Detail}
	}
	return &rollout{wanted: wanted, since: now, next: now.Add(shadowFor)}
}

// save keeps the service's memory now, where it differs from what was saved last.
func (s *service) save(now time.Time) {
	b := s.remember(now)
	if !bytes.Equal(b, s.saved) {
		s.saved = b
		s.set.save(s.name, b)
	}
}
