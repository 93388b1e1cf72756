package shard

import (
	"testing"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// TestTheInboxForgetsLargeMaps: a map never shrinks, and spare mail goes from
// service to service. What thousands of instances needed is not kept.
func TestTheInboxForgetsLargeMaps(t *testing.T) {
	b := newInbox(1 << 20)
	for uid := range registry.UID(2 * keptRoom) {
		b.putRenewal(checkout, uid, time.Unix(1, 0))
		b.putSamples(checkout, []health.Sample{{UID: uid, Class: registry.ClassSelf, Status: health.NotServing}})
	}
	b.giveBack(b.take())
	if m := b.spareMail[0]; m.renewals != nil || m.urgent != nil {
		t.Error("the maps of a large service are kept")
	}
	b.putRenewal(checkout, 1, time.Unix(1, 0))
	b.giveBack(b.take())
	if m := b.spareMail[0]; m.renewals == nil || len(m.renewals) != 0 {
		t.Error("a small map is not kept, or not empty")
	}
}
