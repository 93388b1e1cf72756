package main

import (
	"math"
	"slices"
	"sync"
	"time"
)

// The numbers of HEALTH.md §2 and the default contract.
const (
	modelHalfLife = 4 * time.Second
	modelOut      = 0.20
	modelCounts   = 5.0  // decayed samples for a reporter to count
	modelFailures = 8.0  // together, of those against
	modelAgainst  = 2.0  // decayed failures of one that is against
	modelMedian   = 0.70 // siblings' median above which a reporter cannot speak
)

// exactModel follows the rules of HEALTH.md §2 with plain maps and math.Exp2. It
// judges an instance after every report on it.
type exactModel struct {
	services []modelService
}

type modelService struct {
	mu    sync.Mutex
	cells map[int]map[int]*modelCell // by reporter, by instance
	over  map[int]bool
}

type modelCell struct {
	samples, failures float64
	at                time.Time
}

func newExactModel(services int) *exactModel {
	m := &exactModel{services: make([]modelService, services)}
	for k := range m.services {
		m.services[k] = modelService{cells: make(map[int]map[int]*modelCell), over: make(map[int]bool)}
	}
	return m
}

// decayed is the cell as it is now.
func (c *modelCell) decayed(now time.Time) (samples, failures float64) {
	f := math.Exp2(-now.Sub(c.at).Seconds() / modelHalfLife.Seconds())
	return c.samples * f, c.failures * f
}

// hear takes a report as it was sent.
func (m *exactModel) hear(now time.Time, p *reporter) {
	for half, service := range p.services {
		from, to := 0, ingestInstances
		if half == 1 {
			from, to = ingestInstances, perReport
		}
		s := &m.services[service]
		s.mu.Lock()
		mine := s.cells[p.n]
		if mine == nil {
			mine = make(map[int]*modelCell)
			s.cells[p.n] = mine
		}
		var suspects []int
		for k := from; k < to; k++ {
			c := mine[k-from]
			if c == nil {
				c = &modelCell{at: now}
				mine[k-from] = c
			}
			samples, failures := c.decayed(now)
			c.samples, c.failures, c.at = samples+float64(p.batch.Issued[k]), failures+float64(p.batch.Failed[k]), now
			if c.failures >= modelOut*c.samples {
				suspects = append(suspects, k-from)
			}
		}
		for _, i := range suspects {
			s.over[i] = s.over[i] || s.overTheLine(i, now)
		}
		s.mu.Unlock()
	}
}

// overTheLine reads one instance by the rules.
func (s *modelService) overTheLine(instance int, now time.Time) bool {
	counting, against := 0, 0
	var samples, failures float64
	for _, mine := range s.cells {
		c := mine[instance]
		if c == nil {
			continue
		}
		n, f := c.decayed(now)
		m, ok := siblings(mine, instance, now)
		if n < modelCounts || !ok || m > modelMedian {
			continue
		}
		counting++
		near := min(max(m, 0.02), 0.5)
		margin := max(0.20, 4*math.Sqrt(near*(1-near)/(2*n)))
		if f/n >= modelOut && f >= modelAgainst && f/n-m >= margin {
			against++
			samples, failures = samples+n, failures+f
		}
	}
	return against >= 2 && 2*against > counting && failures >= modelFailures && failures/samples >= modelOut
}

// siblings is the lower median of a reporter's scores on the other instances.
func siblings(mine map[int]*modelCell, but int, now time.Time) (median float64, ok bool) {
	var scores []float64
	for i, c := range mine {
		if n, f := c.decayed(now); i != but && n >= modelCounts {
			scores = append(scores, f/n)
		}
	}
	if len(scores) == 0 {
		return 0, false
	}
	slices.Sort(scores)
	return scores[(len(scores)-1)/2], true
}

// everOver reports whether the instance was over the line at some time.
func (m *exactModel) everOver(service, instance int) bool {
	s := &m.services[service]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over[instance]
}
