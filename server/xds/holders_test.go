package xds

import (
	"slices"
	"testing"

	"github.com/sightlinedev/sightline/views"
)

// TestHolders: once each, whatever the form of the name, and no longer than the
// stream knows it.
func TestHolders(t *testing.T) {
	s := &Server{feed: newFeed(nil, nil, nil)}
	x := s.feed.index
	for _, k := range []struct {
		name   string
		stream uint32
	}{{"checkout.shop", 9}, {"checkout.shop:9090", 9}, {"checkout.shop", 3}, {"cart.shop", 4}} {
		x.join(k.name, k.stream)
	}
	n := views.Name{Namespace: "shop", Service: "checkout"}
	if got := s.Holders(n); !slices.Equal(got, []uint32{3, 9}) {
		t.Errorf("holders %v", got)
	}
	id, _ := x.find("checkout.shop")
	x.leave(id, 3)
	x.leave(id, 9)
	if got := s.Holders(n); !slices.Equal(got, []uint32{9}) {
		t.Errorf("holders %v, one of them by port", got)
	}
	if got := s.Holders(views.Name{Namespace: "shop", Service: "none"}); len(got) != 0 {
		t.Errorf("holders of nothing: %v", got)
	}
}
