package registryapi

import (
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/sightlinedev/sightline/identity"
)

// rememberedReplies is how many answers are kept for requests that come again.
const rememberedReplies = 4096

// replies remembers the answers to requests that carry a request id, so that a
// caller whose connection broke can ask again without writing twice
// (AIP-155). They are forgotten oldest first, and at a restart.
type replies struct {
	mu    sync.Mutex
	byKey map[replyKey]proto.Message
	order []replyKey
}

type replyKey struct {
	who        identity.ID
	method, id string
}

func newReplies() *replies { return &replies{byKey: make(map[replyKey]proto.Message)} }

// remembered returns the earlier answer to the same request of the same caller.
func remembered[T proto.Message](r *replies, who identity.ID, method, id string) (reply T, ok bool) {
	if id == "" {
		return reply, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.byKey[replyKey{who, method, id}]
	if !ok {
		return reply, false
	}
	return m.(T), true
}

// keep remembers an answer.
func (r *replies) keep(who identity.ID, method, id string, m proto.Message) {
	if id == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := replyKey{who, method, id}
	if _, ok := r.byKey[k]; !ok {
		r.order = append(r.order, k)
	}
	r.byKey[k] = m
	if len(r.order) > rememberedReplies {
		delete(r.byKey, r.order[0])
		r.order = r.order[1:]
	}
}
