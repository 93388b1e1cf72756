package reconcile

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
)

// comparison is a list beside what is held.
type comparison struct {
	diff       Diff
	puts       []registry.Mutation
	duplicates []Duplicate
	labels     map[registry.UID]string // of the extra instances
	instances  int                     // held
	services   int                     // held
}

// instanceName is how a list names an instance: by its label, or, where it has
// none, by what makes it another one when it changes.
type instanceName struct {
	service  registry.Name
	label    string
	endpoint registry.Endpoint
	identity identity.ID
	ports    string
}

func nameOf(i *registry.Instance) instanceName {
	if i.Label != "" {
		return instanceName{service: i.Service, label: i.Label}
	}
	n := instanceName{service: i.Service, endpoint: i.Endpoint, identity: i.Identity}
	n.endpoint.Addr = n.endpoint.Addr.Unmap()
	for _, p := range slices.SortedFunc(slices.Values(i.Ports), func(a, b registry.PortNumber) int { return cmp.Compare(a.Name, b.Name) }) {
		n.ports += fmt.Sprintf("%s=%d ", p.Name, p.Number)
	}
	return n
}

// compare finds the difference. Every listed row is taken as the source's own,
// and a listed instance as proved by its authority.
func compare(source string, list *List, held []registry.Row) *comparison {
	c := &comparison{labels: make(map[registry.UID]string)}
	rows := make(map[registry.RowKey]registry.Row, len(held))
	byName := make(map[instanceName]*registry.Instance, len(held))
	for _, r := range held {
		switch {
		case r.Instance != nil:
			c.instances++
			byName[nameOf(r.Instance)] = r.Instance
			continue
		case r.Service != nil:
			c.services++
		}
		rows[r.Key] = r
	}
	listed := make(map[registry.RowKey]bool)
	c.profiles(source, list.Profiles, rows, listed)
	c.contracts(source, list.Contracts, rows, listed)
	c.servicesOf(source, list.Services, rows, listed)
	seen := c.instancesOf(source, list.Instances, byName)
	for _, r := range held {
		if i := r.Instance; i != nil {
			if !seen[nameOf(i)] {
				c.labels[i.UID] = i.Label
				c.diff.Extra = append(c.diff.Extra, r.Key)
			}
		} else if !listed[r.Key] {
			c.diff.Extra = append(c.diff.Extra, r.Key)
		}
	}
	return c
}

// first marks a row as listed; it is false, and noted, for a second one.
func (c *comparison) first(k registry.RowKey, listed map[registry.RowKey]bool) bool {
	if listed[k] {
		c.duplicates = append(c.duplicates, Duplicate{k.Kind, k.Name.String()})
		return false
	}
	listed[k] = true
	return true
}

// put notes a difference: the row is missing here, or changed.
func (c *comparison) put(k registry.RowKey, held bool, m registry.Mutation) {
	if held {
		c.diff.Changed = append(c.diff.Changed, k)
	} else {
		c.diff.Missing = append(c.diff.Missing, k)
	}
	c.puts = append(c.puts, m)
}

func (c *comparison) profiles(source string, list []*registry.Profile, rows map[registry.RowKey]registry.Row, listed map[registry.RowKey]bool) {
	for _, p := range list {
		row := *p
		row.Source = source
		k := registry.RowKey{Kind: registry.ProfileRow, Name: registry.Name{Namespace: p.Namespace, Service: p.Name}}
		old := rows[k].Profile
		if c.first(k, listed) && (old == nil || !old.Equal(&row)) {
			c.put(k, old != nil, registry.PutProfile{Row: row})
		}
	}
}

func (c *comparison) contracts(source string, list []*registry.Contract, rows map[registry.RowKey]registry.Row, listed map[registry.RowKey]bool) {
	for _, p := range list {
		row := *p
		row.Source = source
		k := registry.RowKey{Kind: registry.ContractRow, Name: p.Name}
		old := rows[k].Contract
		if c.first(k, listed) && (old == nil || !old.Equal(&row)) {
			c.put(k, old != nil, registry.PutContract{Row: row})
		}
	}
}

func (c *comparison) servicesOf(source string, list []*registry.Service, rows map[registry.RowKey]registry.Row, listed map[registry.RowKey]bool) {
	for _, p := range list {
		row := *p
		row.Source = source
		k := registry.RowKey{Kind: registry.ServiceRow, Name: p.Name}
		old := rows[k].Service
		if c.first(k, listed) && (old == nil || !old.Equal(&row)) {
			c.put(k, old != nil, registry.PutService{Row: row})
		}
	}
}

func (c *comparison) instancesOf(source string, list []*registry.Instance, byName map[instanceName]*registry.Instance) map[instanceName]bool {
	seen := make(map[instanceName]bool, len(list))
	for _, p := range list {
		n := nameOf(p)
		if seen[n] {
			c.duplicates = append(c.duplicates, Duplicate{registry.InstanceRow, p.Service.String() + "/" + p.Label})
			continue
		}
		seen[n] = true
		row := *p
		row.Source = source
		if row.Proof == registry.Unproved {
			row.Proof = registry.ByAuthority
		}
		old := byName[n]
		if old != nil && old.Equal(&row) {
			continue
		}
		k := registry.RowKey{Kind: registry.InstanceRow, Name: p.Service}
		if old != nil {
			k.UID = old.UID
			if row.Label == "" {
				row.UID = old.UID // nothing else names it
			}
		}
		c.put(k, old != nil, registry.PutInstance{Row: row})
	}
	return seen
}
