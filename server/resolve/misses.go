package resolve

import (
	"sync"
	"time"

	"github.com/sightlinedev/sightline/identity"
)

// misses counts, within the running minute, the names that each identity asked
// for in vain, so that guessing names is slow. Its size is bounded by the
// identities that miss within a minute.
type misses struct {
	perMinute int // fixed; zero: no limit

	mu     sync.Mutex
	minute time.Time
	counts map[identity.ID]int
}

// allow reports whether the identity may ask for another name.
func (m *misses) allow(id identity.ID, now time.Time) bool {
	if m.perMinute == 0 {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.minute) >= time.Minute || m.counts == nil {
		m.minute, m.counts = now, map[identity.ID]int{}
	}
	return m.counts[id] < m.perMinute
}

// add counts a name that was asked for in vain.
func (m *misses) add(id identity.ID) {
	if m.perMinute == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[id]++
}
