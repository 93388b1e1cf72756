package probe

import (
	"sync"
	"time"
)

// board is where the loop leaves results and the reporter takes them. It is
// bounded: the oldest results go first, which is silence.
type board struct {
	limit int
	woken chan struct{} // holds a token while results wait
	hurry chan struct{} // holds a token while one of them is news

	mu         sync.Mutex
	generation uint64
	uids       []string // of the assignment
	results    []Result // oldest first
	dropped    int64
}

func newBoard(limit int) *board {
	return &board{limit: limit, woken: make(chan struct{}, 1), hurry: make(chan struct{}, 1)}
}

// assigned says what the prober works by now. Results on what is no longer
// assigned are dropped.
func (b *board) assigned(generation uint64, targets map[string]*target) {
	uids := make([]string, 0, len(targets))
	for uid := range targets {
		uids = append(uids, uid)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.generation, b.uids = generation, uids
	kept := b.results[:0]
	for _, r := range b.results {
		if targets[r.UID] != nil {
			kept = append(kept, r)
		}
	}
	clear(b.results[len(kept):])
	b.results = kept
}

// put leaves a result. news: it differs from the one before, so that it should
// not wait for others.
func (b *board) put(r Result, news bool) {
	b.mu.Lock()
	b.results = append(b.results, r)
	b.bound()
	b.mu.Unlock()
	fill(b.woken)
	if news {
		fill(b.hurry)
	}
}

func fill(token chan struct{}) {
	select {
	case token <- struct{}{}:
	default:
	}
}

func empty(token chan struct{}) {
	select {
	case <-token:
	default:
	}
}

// bound drops the oldest results over the limit. mu is held.
func (b *board) bound() {
	if over := len(b.results) - b.limit; over > 0 {
		b.dropped += int64(over)
		b.results = append(b.results[:0], b.results[over:]...)
	}
}

// takeFresh empties the board and returns what is not older than maxAge.
func (b *board) takeFresh(now time.Time, maxAge time.Duration) (generation uint64, results []Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	empty(b.woken) // what they stood for is taken now
	empty(b.hurry)
	results, b.results = b.results, nil
	fresh := 0
	for fresh < len(results) && now.Sub(results[fresh].At) > maxAge {
		fresh++
	}
	b.dropped += int64(fresh)
	return b.generation, results[fresh:]
}

// back returns results that could not be sent; they are the oldest.
func (b *board) back(results []Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.results = append(results, b.results...)
	b.bound()
}

// assignment is the generation and the uids of what is assigned.
func (b *board) assignment() (uint64, []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.generation, b.uids // replaced whole, never changed
}

func (b *board) droppedSoFar() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dropped
}
