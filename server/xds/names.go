package xds

import (
	"strconv"

	"github.com/sightlinedev/sightline/views"
)

// dialled is the name by which callers reach a port of a service: its host form,
// with the number unless it is the default port (NAMES.md).
func dialled(n views.Name, number uint16) string {
	return n.Host() + ":" + strconv.Itoa(int(number))
}

// portOf finds the port that a resource name means. ok is false when the
// service does not declare it: such a name is as unknown as any other.
func portOf(v *views.View, number uint16) (i int, ok bool) {
	if number == 0 {
		return 0, len(v.Ports) > 0
	}
	for i := range v.Ports {
		if v.Ports[i].Number == number {
			return i, true
		}
	}
	return 0, false
}

// clusterOf is the name of the Cluster of the i-th port: a service has one per
// declared number, and the default port's carries the plain host form.
func clusterOf(v *views.View, i int) string {
	if v.Ports[i].Number == v.Ports[0].Number {
		return v.Name.Host()
	}
	return dialled(v.Name, v.Ports[i].Number)
}

// clusterNames lists the service's Clusters, the default port's first.
func (r *renderer) clusterNames(v *views.View) []string {
	names := make([]string, 0, len(v.Ports))
	for i := range v.Ports {
		if first, _ := portOf(v, v.Ports[i].Number); first == i {
			names = append(names, clusterOf(v, i))
		}
	}
	return names
}

// numberAt is the number at which a member serves the view's i-th port: its own
// for that port's name, or the one that the service declares.
func numberAt(v *views.View, m *views.Member, i int) uint16 {
	p := v.Ports[i]
	if i < len(m.Ports) && m.Ports[i].Name == p.Name && m.Ports[i].Number != 0 {
		return m.Ports[i].Number
	}
	for _, own := range m.Ports {
		if own.Name == p.Name && own.Number != 0 {
			return own.Number
		}
	}
	return p.Number
}
