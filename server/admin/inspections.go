package admin

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

const (
	// inspectShare is the part of a shard's time that looking at one service may
	// take: what one look cost is waited for that many times, and meanwhile
	// everybody is given what it found.
	inspectShare = 20
	// keptAtMost bounds how old an explanation may be.
	keptAtMost = 5 * time.Second
)

// inspections shares looks at services: explaining one of ten thousand instances
// takes its shard a good part of a second, and whoever serves it may ask as often
// as it likes.
type inspections struct {
	inspect func(context.Context, registry.Name) (Inspection, bool, error)

	mu     sync.Mutex
	byName map[registry.Name]*look
}

// look is one look at a service, which others may wait for. It is fixed once
// done is closed.
type look struct {
	done  chan struct{}
	at    time.Time // when it was found
	found Inspection
	ok    bool
	err   error
}

func newInspections(inspect func(context.Context, registry.Name) (Inspection, bool, error)) *inspections {
	return &inspections{inspect: inspect, byName: make(map[registry.Name]*look)}
}

// of returns what the evaluation holds of a service, and since when it was so.
// What it returns is shared: nobody changes it.
func (x *inspections) of(ctx context.Context, n registry.Name) (found Inspection, at time.Time, ok bool, err error) {
	for {
		l, own := x.join(n)
		if own {
			x.look(ctx, n, l)
			return l.found, l.at, l.ok, l.err
		}
		select {
		case <-l.done:
		case <-ctx.Done():
			return found, at, false, ctx.Err()
		}
		if l.err == nil { // else it was its asker who left, perhaps
			return l.found, l.at, l.ok, nil
		}
	}
}

// join returns the look that is there, or a new one that the caller has to take.
func (x *inspections) join(n registry.Name) (l *look, own bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l = x.byName[n]; l != nil {
		return l, false
	}
	l = &look{done: make(chan struct{})}
	x.byName[n] = l
	return l, true
}

func (x *inspections) look(ctx context.Context, n registry.Name, l *look) {
	began := time.Now()
	l.err = errNoLook
	defer func() { // also where it panics: others wait
		if keep := min(inspectShare*l.at.Sub(began), keptAtMost); l.err == nil && keep > 0 {
			time.AfterFunc(keep, func() { x.forget(n, l) })
		} else {
			x.forget(n, l)
		}
		close(l.done)
	}()
	l.found, l.ok, l.err = x.inspect(ctx, n)
	l.at = time.Now()
}

// errNoLook is what a look that never came back leaves.
var errNoLook = errors.New("the look at the service failed")

func (x *inspections) forget(n registry.Name, l *look) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byName[n] == l {
		delete(x.byName, n)
	}
}
