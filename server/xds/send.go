package xds

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// priority orders the pool's queue: streams with a withdrawal go first.
type priority uint8

const (
	urgently priority = iota
	patiently
)

// blockedAfter is how long a send may hold a worker before another takes its
// place in the pool (ENGINE.md §9).
const blockedAfter = 100 * time.Millisecond

// pool is the set of workers that build and send responses. A stream is queued
// when there may be something to send, at most once per priority, so the queue
// is bounded by the number of streams.
type pool struct {
	mu      sync.Mutex
	ready   *sync.Cond
	queues  [2]queue
	fenced  [2]bool
	workers map[*worker]struct{}
	closed  bool
	wg      sync.WaitGroup // workers and the goroutines of slow sends
}

type task struct {
	st    *stream
	fence func()
}

// queue is a first-in, first-out list that does not keep what left it.
type queue struct {
	in, out []task
}

func (q *queue) push(t task) { q.in = append(q.in, t) }

func (q *queue) pop() (task, bool) {
	if len(q.out) == 0 {
		q.out, q.in = q.in, q.out[:0]
		for i, j := 0, len(q.out)-1; i < j; i, j = i+1, j-1 {
			q.out[i], q.out[j] = q.out[j], q.out[i]
		}
	}
	n := len(q.out)
	if n == 0 {
		return task{}, false
	}
	t := q.out[n-1]
	q.out[n-1] = task{}
	q.out = q.out[:n-1]
	return t, true
}

// worker is one goroutine of the pool.
type worker struct {
	sending  atomic.Int64 // when the send in progress began, Unix nanoseconds; 0: none
	replaced bool         // guarded by the pool's mu
}

func newPool() *pool {
	p := &pool{workers: make(map[*worker]struct{})}
	p.ready = sync.NewCond(&p.mu)
	return p
}

func (p *pool) push(st *stream, prio priority) { p.enqueue(task{st: st}, prio) }

func (p *pool) enqueue(t task, prio priority) {
	p.mu.Lock()
	p.queues[prio].push(t)
	p.mu.Unlock()
	p.ready.Signal()
}

// fence calls do once all that was queued before it has been taken by a worker.
// While one waits, further ones are left out: it measures the same queue.
func (p *pool) fence(prio priority, do func()) {
	p.mu.Lock()
	if p.fenced[prio] || p.closed {
		p.mu.Unlock()
		return
	}
	p.fenced[prio] = true
	p.queues[prio].push(task{fence: do})
	p.mu.Unlock()
	p.ready.Signal()
}

// next waits for a task; ok is false when the worker is to end.
func (p *pool) next(w *worker) (t task, prio priority, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.closed || w.replaced {
			delete(p.workers, w)
			return task{}, 0, false
		}
		for prio = urgently; prio <= patiently; prio++ {
			if t, ok = p.queues[prio].pop(); ok {
				p.fenced[prio] = p.fenced[prio] && t.fence == nil
				return t, prio, true
			}
		}
		p.ready.Wait()
	}
}

func (p *pool) work(w *worker) {
	defer p.wg.Done()
	for {
		t, prio, ok := p.next(w)
		switch {
		case !ok:
			return
		case t.fence != nil:
			t.fence()
		case t.st.bell.begin(prio):
			t.st.serve(w)
		}
	}
}

// start adds a worker. The caller holds mu.
func (p *pool) start() {
	w := &worker{}
	p.workers[w] = struct{}{}
	p.wg.Add(1)
	go p.work(w)
}

// own gives a send that may block a goroutine of its own. It ends with the
// stream at the latest.
func (p *pool) own(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		do()
	}()
}

// replaceBlocked starts a worker for each one that sits in a send.
func (p *pool) replaceBlocked(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.workers {
		since := w.sending.Load()
		if since != 0 && !w.replaced && now.Sub(time.Unix(0, since)) > blockedAfter {
			w.replaced = true
			p.start()
		}
	}
}

// run keeps the workers until ctx ends, and returns when none is left. Streams
// must have been ended by then, or a blocked send would hold it.
func (p *pool) run(ctx context.Context) {
	p.mu.Lock()
	for range 2 * runtime.GOMAXPROCS(0) {
		p.start()
	}
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.ready.Broadcast()
	p.wg.Wait()
}

// outgoing is a response on its way. before is what the client had not
// acknowledged when it was built, in bytes.
type outgoing struct {
	msg    any
	before int
}

// serve builds and sends until nothing is due. w is nil on a goroutine of the
// stream's own, which may block.
func (st *stream) serve(w *worker) {
	for {
		out := st.compose(time.Now())
		if len(out) > 0 {
			if !st.sendAll(out, w) {
				return
			}
			continue
		}
		if st.bell.done() {
			return
		}
	}
}

// sendAll sends in order. It reports false when a goroutine of the stream's own
// has taken over.
func (st *stream) sendAll(out []outgoing, w *worker) bool {
	for i := range out {
		if w != nil && out[i].before >= st.srv.cfg.Limits.SendWindow {
			left := out[i:]
			st.srv.pool.own(func() {
				st.sendAll(left, nil)
				st.serve(nil)
			})
			return false
		}
		began := time.Now().UnixNano()
		st.sending.Store(began)
		if w != nil {
			w.sending.Store(began)
		}
		err := st.conn.SendMsg(out[i].msg)
		st.sending.Store(0)
		if w != nil {
			w.sending.Store(0)
		}
		if err != nil {
			st.close()
			return true
		}
	}
	return true
}
