package paging_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/server/paging"
	"github.com/sightlinedev/sightline/server/status"
)

// TestPagesAreTheList: whatever the sizes, and whatever comes and goes between
// two pages, what is there all along is given once and in order.
func TestPagesAreTheList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steady := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-c]{1,3}`), 0, 20, rapid.ID).Draw(t, "steady")
		slices.Sort(steady)
		var got []string
		for n, token := 0, ""; n == 0 || token != ""; n++ {
			guests := rapid.SliceOfNDistinct(rapid.StringMatching(`[d-f]{1,3}|[a-c]{1,3}x`), 0, 5, rapid.ID).Draw(t, "guests")
			var rows []paging.Keyed[string]
			for _, k := range slices.Concat(guests, steady) {
				rows = append(rows, paging.Keyed[string]{Key: k, Row: k})
			}
			size := rapid.IntRange(1, 7).Draw(t, "size")
			page, next, err := paging.Cut(rows, "list", token, size)
			if err != nil || len(page) > size || next != "" && len(page) != size {
				t.Fatal(page, next, err)
			}
			for _, k := range page {
				if slices.Contains(steady, k) {
					got = append(got, k)
				}
			}
			token = next
		}
		if !slices.Equal(got, steady) {
			t.Fatalf("gave %v of %v", got, steady)
		}
	})
}

// TestTokensBelongToTheirList.
func TestTokensBelongToTheirList(t *testing.T) {
	token := paging.Token("services/shop", "a\x00b")
	if key, err := paging.After("services/shop", token); err != nil || key != "a\x00b" {
		t.Errorf("%q, %v", key, err)
	}
	for list, token := range map[string]string{"services/": token, "services/shop": "!", "services/sho": token, "instances/shop": token} {
		_, err := paging.After(list, token)
		if code, _ := status.CodeOf(err); code != status.InvalidPageToken {
			t.Errorf("%s, %s: %v", list, token, err)
		}
		if _, _, err := paging.Cut([]paging.Keyed[int](nil), list, token, 1); err == nil {
			t.Errorf("%s was taken for %s", token, list)
		}
	}
}

// TestSizes: what is asked for, within bounds.
func TestSizes(t *testing.T) {
	s := paging.Sizes{Default: 100, Most: 1000}
	for asked, want := range map[int32]int{-1: 100, 0: 100, 1: 1, 1000: 1000, 1001: 1000} {
		if got := s.Of(asked); got != want {
			t.Errorf("%s: %d", fmt.Sprint(asked), got)
		}
	}
	if got := (paging.Sizes{}).Of(5); got != 1 {
		t.Errorf("no sizes: %d", got)
	}
}
