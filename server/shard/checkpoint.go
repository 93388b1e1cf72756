package shard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// memoryFormat is the version of a checkpoint's envelope.
const memoryFormat = 1

// storedMemory is the form in which a service's memory is kept.
type storedMemory struct {
	Format int `json:"v"`
	// At is when it was written, where Views holds times.
	At     time.Time       `json:"at,omitzero"`
	Health json.RawMessage `json:"health,omitempty"`
	Views  *views.Memory   `json:"views,omitempty"`
	// Contract is there while the newest contract is not in effect everywhere.
	Contract *storedContract `json:"contract,omitempty"`
}

type memory struct {
	health   health.Memory
	views    views.Memory
	contract *storedContract
}

// checkpoint saves what each service must not forget, where it differs from
// what was saved last.
func (s *shard) checkpoint(now time.Time) {
	for name, svc := range s.services {
		b := svc.remember(now)
		if bytes.Equal(b, svc.saved) {
			continue
		}
		svc.saved = b
		s.set.save(name, b)
	}
}

func (s *Set) save(name registry.Name, b []byte) {
	if s.cfg.SaveCheckpoint != nil {
		s.cfg.SaveCheckpoint(name, b)
	}
}

func (s *service) remember(now time.Time) []byte {
	v := s.assembler.Memory()
	m := storedMemory{Format: memoryFormat, Health: s.evaluator.Checkpoint(now), Views: &v, Contract: s.contracts.remember()}
	if v.Dated() {
		m.At = now
	}
	b, err := json.Marshal(m)
	if err != nil {
		// Only numbers, strings and times: cannot fail.
		panic(fmt.Sprintf("shard: checkpoint of %s does not encode: %v", s.name, err))
	}
	return b
}

// readMemory decodes a checkpoint. What cannot be read is lost, each part for
// itself: losing memory lowers confidence and takes nobody out. Its times are
// moved to now: neither the outage nor a clock that was set meanwhile counts.
func readMemory(b []byte, now time.Time) (memory, error) {
	var m memory
	if len(b) == 0 {
		return m, nil
	}
	var s storedMemory
	if err := json.Unmarshal(b, &s); err != nil {
		return m, fmt.Errorf("checkpoint: %w", err)
	}
	if s.Format != memoryFormat {
		return m, fmt.Errorf("checkpoint: format %d, this build reads %d", s.Format, memoryFormat)
	}
	if s.Views != nil {
		m.views = *s.Views
		if !s.At.IsZero() {
			m.views = m.views.Moved(s.At, now)
		}
	}
	m.contract = s.Contract
	var err error
	m.health, err = health.ReadMemory(s.Health)
	return m, err
}
