package registry

// directoryParts is the number of parts that a Directory is copied in.
const directoryParts = 512

// Directory finds live instances by uid, unadmitted ones included. It is
// immutable, so any goroutine may read the one it was given; With derives the
// next one at the cost of the parts that changed. The zero value is empty.
type Directory struct {
	parts [directoryParts]map[UID]*Instance
	count int
}

// Lookup returns the instance's row: its service, identity and source among
// others. A uid that is gone is not found, for ever.
func (d *Directory) Lookup(u UID) (*Instance, bool) {
	i, ok := d.parts[u%directoryParts][u]
	return i, ok
}

// Len is the number of live instances.
func (d *Directory) Len() int { return d.count }

// With returns the directory after the changes.
func (d *Directory) With(changes []Change) *Directory {
	next := *d
	var copied [directoryParts]bool
	for _, c := range changes {
		for _, i := range c.Instances {
			part := i.UID % directoryParts
			if !copied[part] {
				next.parts[part] = copyPart(d.parts[part])
				copied[part] = true
			}
			next.set(part, i)
		}
	}
	return &next
}

// set changes a part that this directory alone holds.
func (d *Directory) set(part UID, c InstanceChange) {
	_, had := d.parts[part][c.UID]
	switch {
	case c.Row != nil:
		d.parts[part][c.UID] = c.Row
		if !had {
			d.count++
		}
	case had:
		delete(d.parts[part], c.UID)
		d.count--
	}
}

func copyPart(old map[UID]*Instance) map[UID]*Instance {
	part := make(map[UID]*Instance, len(old)+1)
	for u, i := range old {
		part[u] = i
	}
	return part
}
