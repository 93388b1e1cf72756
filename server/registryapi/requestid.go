package registryapi

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sightlinedev/sightline/identity"
)

const (
	// rememberedReplies is how many answers are kept for requests that come
	// again, rememberedFor how long.
	rememberedReplies = 4096
	rememberedFor     = 10 * time.Minute
)

// replies remembers the answers to requests that carry a request id, so that a
// caller whose connection broke can ask again without writing twice
// (AIP-155). They are forgotten oldest first, and at a restart. Refusals are
// not remembered: what is asked again is tried again.
type replies struct {
	mu    sync.Mutex
	byKey map[replyKey]*reply
	order []replyKey // of the answered ones, oldest first
}

type replyKey struct {
	who        identity.ID
	method, id string
}

// reply is one answer, or one on its way.
type reply struct {
	done    chan struct{} // closed when it is known
	message proto.Message // nil: it was refused
	at      time.Time
}

func newReplies() *replies { return &replies{byKey: make(map[replyKey]*reply)} }

// once does what a request asks for, unless the same caller's request of the
// same id has been answered or is being answered: then it is that answer.
func once[T proto.Message](ctx context.Context, s *Server, a attempt, id string, do func() (T, error)) (T, error) {
	if id == "" || a.validateOnly {
		return do()
	}
	k := replyKey{a.who.ID, a.method, id}
	for {
		r, first := s.replies.claim(k, time.Now())
		if first {
			m, err := do()
			s.replies.settle(k, r, m, err, time.Now())
			return m, err
		}
		select {
		case <-r.done:
			if r.message != nil {
				return r.message.(T), nil
			}
		case <-ctx.Done():
			var none T
			return none, ctx.Err()
		}
	}
}

func (r *replies) claim(k replyKey, now time.Time) (held *reply, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.order) > 0 {
		oldest := r.byKey[r.order[0]]
		if len(r.order) <= rememberedReplies && now.Sub(oldest.at) < rememberedFor {
			break
		}
		delete(r.byKey, r.order[0])
		r.order = r.order[1:]
	}
	if held = r.byKey[k]; held != nil {
		return held, false
	}
	held = &reply{done: make(chan struct{})}
	r.byKey[k] = held
	return held, true
}

func (r *replies) settle(k replyKey, held *reply, m proto.Message, err error, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer close(held.done)
	if err != nil {
		delete(r.byKey, k)
		return
	}
	held.message, held.at = m, now
	r.order = append(r.order, k)
}
