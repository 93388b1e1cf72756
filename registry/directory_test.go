package registry_test

import (
	"testing"

	"github.com/sightlinedev/sightline/registry"
)

// TestADirectoryStaysAsItWas: whoever holds one reads it while newer ones are made.
func TestADirectoryStaysAsItWas(t *testing.T) {
	one, two, far := instance(), instance(), instance()
	one.UID, two.UID, far.UID = 1, 1+512, 2 // one and two share a part
	told := func(i *registry.Instance, gone bool) []registry.Change {
		c := registry.InstanceChange{UID: i.UID, Row: i}
		if gone {
			c.Row, c.Removal = nil, registry.Deregistered
		}
		return []registry.Change{{Name: i.Service, Instances: []registry.InstanceChange{c}}}
	}
	empty := &registry.Directory{}
	first := empty.With(told(&one, false))
	second := first.With(told(&two, false)).With(told(&far, false))
	third := second.With(told(&one, true)).With(told(&one, true))
	for _, c := range []struct {
		what string
		dir  *registry.Directory
		uids []registry.UID
	}{{"empty", empty, nil}, {"first", first, []registry.UID{1}}, {"second", second, []registry.UID{1, 513, 2}}, {"third", third, []registry.UID{513, 2}}} {
		if c.dir.Len() != len(c.uids) {
			t.Errorf("%s has %d instances, want %v", c.what, c.dir.Len(), c.uids)
		}
		found := 0
		for _, u := range []registry.UID{1, 2, 513} {
			if i, ok := c.dir.Lookup(u); ok && i.UID == u {
				found++
			}
		}
		if found != len(c.uids) {
			t.Errorf("%s finds %d instances, want %v", c.what, found, c.uids)
		}
	}
}

// TestOverlaysApplyInOrder: a second overlay with puts, planned on a state that
// has moved on, would break what the index promises.
func TestOverlaysApplyInOrder(t *testing.T) {
	ix := registry.NewIndex(0)
	first, second := ix.Begin(), ix.Begin()
	for _, o := range []*registry.Overlay{first, second} {
		if _, err := o.Plan(registry.PutService{Row: service()}); err != nil {
			t.Fatal(err)
		}
	}
	ix.Apply(first)
	defer func() {
		if recover() == nil {
			t.Error("an overlay on an older state was applied")
		}
	}()
	ix.Apply(second)
}
