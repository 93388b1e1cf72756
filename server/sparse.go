package server

import (
	"sync"
	"time"
)

// perMinute lets each key through once a minute, for what others can cause as
// often as they like. It is bounded: when too many keys come within a minute,
// further ones are held back. It is used from many goroutines.
type perMinute[K comparable] struct {
	mu    sync.Mutex
	since time.Time
	seen  map[K]struct{}
}

// maxSparseKeys bounds what a minute remembers.
const maxSparseKeys = 4096

func newPerMinute[K comparable]() *perMinute[K] { return &perMinute[K]{seen: make(map[K]struct{})} }

// first reports whether the key was not seen in the current minute.
func (p *perMinute[K]) first(key K) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.since) >= time.Minute {
		p.since = now
		clear(p.seen)
	}
	if _, dup := p.seen[key]; dup || len(p.seen) >= maxSparseKeys {
		return false
	}
	p.seen[key] = struct{}{}
	return true
}
