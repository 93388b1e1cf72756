package xds

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sightlinedev/sightline/server/status"
)

// maxNonce is the longest nonce that can be ours, in bytes.
const maxNonce = 19

// nonce is the written form of a response's serial and its 32 random bits: a
// client that never saw a response cannot settle it.
func (f *inflight) nonce() string {
	var b [maxNonce]byte
	n := append(strconv.AppendUint(b[:0], uint64(f.serial), 10), '-')
	return string(strconv.AppendUint(n, uint64(f.salt), 16))
}

// room reports whether n more responses of the type may go out unsettled.
// Beyond that, what is dirty merges.
func (st *stream) room(t typ, n int) bool {
	return len(st.typ[t].inflight)+n <= st.srv.cfg.Limits.Unacked
}

// gateOpen reports whether additions of the type may go: no response that holds
// additions, and no first answer, waits for its acknowledgement. Responses that
// hold withdrawals only do not count, or a busy neighbour would starve them.
func (st *stream) gateOpen(t typ, now time.Time) bool {
	ts := &st.typ[t]
	for _, f := range ts.inflight {
		if f.holds && !f.settled {
			return false
		}
	}
	if every := st.kind.additionsEvery; every > 0 && !ts.lastPaced.IsZero() {
		if next := ts.lastPaced.Add(every); now.Before(next) {
			st.wakeAt(now, next)
			return false
		}
	}
	return true
}

// mayWithdraw spaces withdrawals towards clients that pay for each response with
// all their connections.
func (st *stream) mayWithdraw(t typ, now time.Time) bool {
	every, last := st.kind.withdrawalsEvery, st.typ[t].lastUrgent
	if every == 0 || last.IsZero() || !now.Before(last.Add(every)) {
		return true
	}
	st.wakeAt(now, last.Add(every))
	return false
}

// mayEnlarge spaces additions to large services towards clients that pay for
// each update with work on every member. A withdrawal takes them along.
func (p *pass) mayEnlarge(t typ, id nameID) bool {
	every, last := p.st.kind.largeEvery, p.st.typ[t].lastLarge
	if every == 0 || t != eds || last.IsZero() || !p.now.Before(last.Add(every)) {
		return true
	}
	n := p.st.srv.feed.index.lookup(id)
	if v := p.st.visible(p.snap, &n); v == nil || v.ListedCount <= largeService {
		return true
	}
	p.st.wakeAt(p.now, last.Add(every))
	return false
}

// departed notes a response that is about to be sent.
func (st *stream) departed(t typ, f *inflight, now time.Time) {
	ts := &st.typ[t]
	ts.inflight = append(ts.inflight, f)
	ts.due = false
	if f.holds {
		ts.lastPaced = now
	}
	st.unacked += f.bytes
	if !st.answered {
		st.answered = true
		if on := st.srv.cfg.Events.InitialAnswer; on != nil {
			on(st.kind.name, st.resumed, now.Sub(st.opened))
		}
	}
}

// newInflight numbers the next response of the type.
func (st *stream) newInflight(t typ, now time.Time) *inflight {
	ts := &st.typ[t]
	ts.serial++
	return &inflight{serial: ts.serial, salt: newSalt(), holds: ts.serial == 1, sent: now}
}

// settle matches a request's nonce with a response. On delta it settles that
// response only, on state of the world all up to it; a nonce that is not one of
// an unsettled response settles nothing. It reports whether one was settled.
func (st *stream) settle(t typ, r *request, now time.Time) bool {
	ts := &st.typ[t]
	i := slices.IndexFunc(ts.inflight, func(f *inflight) bool { return !f.settled && f.matches(r.nonce) })
	if i < 0 {
		return false
	}
	f := ts.inflight[i]
	if !st.delta {
		for _, older := range ts.inflight[:i] {
			st.settled(t, older, now)
		}
	}
	if r.failed {
		if t == eds {
			st.noteSettled(f, false, now)
		}
		st.rejected(t, i, r.detail)
	} else {
		st.settled(t, f, now)
	}
	for len(ts.inflight) > 0 && ts.inflight[0].settled {
		ts.inflight = slices.Delete(ts.inflight, 0, 1)
	}
	if len(ts.inflight) == 0 {
		ts.inflight = nil
	}
	return true
}

// matches compares without building the nonce.
func (f *inflight) matches(nonce string) bool {
	serial, salt, ok := strings.Cut(nonce, "-")
	a, err1 := strconv.ParseUint(serial, 10, 32)
	b, err2 := strconv.ParseUint(salt, 16, 32)
	return ok && err1 == nil && err2 == nil && uint32(a) == f.serial && uint32(b) == f.salt
}

// settled ends a response that its client accepted.
func (st *stream) settled(t typ, f *inflight, now time.Time) {
	if f.settled {
		return
	}
	f.settled = true
	st.unacked -= f.bytes
	ts := &st.typ[t]
	if ts.acked.Less(f.newest) {
		ts.acked = f.newest
	}
	st.accepted(t, f)
	if t == eds {
		st.noteSettled(f, true, now)
	}
	if on := st.srv.cfg.Events.Propagation; on != nil && !f.published.IsZero() {
		on(st.kind.name, now.Sub(f.published))
	}
}

// settledUpTo reports whether no response up to that serial is outstanding.
func (ts *typeState) settledUpTo(serial uint32) bool {
	for _, f := range ts.inflight {
		if f.serial <= serial && !f.settled {
			return false
		}
	}
	return true
}

// stalled returns why the stream is to be ended, or nil: its oldest outstanding
// response is older than any client needs that still makes progress, or it never
// asked for anything.
func (st *stream) stalled(now time.Time) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	l := st.srv.cfg.Limits
	if !st.met && now.Sub(st.opened) > l.StallAfter {
		return status.Errorf(status.StreamStalled, "no request within %s", l.StallAfter)
	}
	if since := st.sending.Load(); since != 0 {
		patience := l.StallAfter + time.Duration(st.unacked)*time.Second/time.Duration(l.StallRate)
		if now.Sub(time.Unix(0, since)) > patience {
			return status.Errorf(status.StreamStalled, "nothing was read within %s", patience.Round(time.Millisecond))
		}
	}
	for t := range types {
		for _, f := range st.typ[t].inflight {
			patience := l.StallAfter + time.Duration(f.bytes)*time.Second/time.Duration(l.StallRate)
			if !f.settled && now.Sub(f.sent) > patience {
				return status.Errorf(status.StreamStalled, "no acknowledgement of a %s response of %d bytes within %s",
					t, f.bytes, patience.Round(time.Millisecond))
			}
		}
	}
	return nil
}

// newSalt is the unpredictable part of a nonce.
func newSalt() uint32 { return rand.Uint32() }
