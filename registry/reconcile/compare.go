package reconcile

import (
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

type instanceName struct {
	service registry.Name
	label   string
}

// compare finds the difference. Every listed row is taken as the source's own,
// and a listed instance as proved by its authority.
func compare(source string, list *List, held []registry.Row) *comparison {
	c := &comparison{labels: make(map[registry.UID]string)}
	rows := make(map[registry.RowKey]registry.Row, len(held))
	byLabel := make(map[instanceName]*registry.Instance, len(held))
	for _, r := range held {
		switch {
		case r.Instance != nil:
			c.instances++
			byLabel[instanceName{r.Instance.Service, r.Instance.Label}] = r.Instance
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
	seen := c.instancesOf(source, list.Instances, byLabel)
	for _, r := range held {
		if i := r.Instance; i != nil {
			if !seen[instanceName{i.Service, i.Label}] {
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

func (c *comparison) instancesOf(source string, list []*registry.Instance, byLabel map[instanceName]*registry.Instance) map[instanceName]bool {
	seen := make(map[instanceName]bool, len(list))
	for _, p := range list {
		n := instanceName{p.Service, p.Label}
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
		old := byLabel[n]
		if old != nil && old.Equal(&row) {
			continue
		}
		k := registry.RowKey{Kind: registry.InstanceRow, Name: p.Service}
		if old != nil {
			k.UID = old.UID
		}
		c.put(k, old != nil, registry.PutInstance{Row: row})
	}
	return seen
}
