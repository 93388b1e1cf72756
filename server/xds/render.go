package xds

import (
	"fmt"
	"hash/fnv"
	"maps"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/sightlinedev/sightline/views"
)

// rendererRevision is part of every resource version. It rises with each change
// of the rendering that gives other bytes for the same view, so that a client
// that resumes after an upgrade is sent them; testdata/revision.txt holds the
// bytes of this one.
const rendererRevision = 2

// shape is everything about a client that a resource's bytes depend on, the
// zone aside.
type shape uint8

const (
	shapeEnvoy       shape = iota
	shapeGRPC              // Listener, RouteConfiguration and Cluster of every gRPC client
	shapePerEndpoint       // the three forms of a gRPC assignment
	shapeGrouped
	shapeFlat
	shapeDrop // an empty assignment for gRPC Java
)

// formKey names one rendering of one view of a service. It holds every input
// that the view itself does not.
type formKey struct {
	typ   typ
	port  uint16 // as in the resource's name, 0: the default port's form
	shape shape
	zone  string // where the view prefers zones and a listed member is in it
}

// render is the part of a version that names the rendering (DESIGN.md §8).
func (k formKey) render() string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%d/%d/%s", rendererRevision, k.shape, k.zone)
	return fmt.Sprintf("%08x", h.Sum32())
}

// renderer turns views into encoded resources and keeps the bytes of the newest
// view of each service, and of recent composites. All methods may be called
// from any goroutine.
type renderer struct {
	cfg renderConfig

	mu       sync.RWMutex
	services map[views.Name]*serviceBytes

	composites composites
}

// serviceBytes holds what was made of one view of a service.
type serviceBytes struct {
	view  *views.View
	zones map[string]bool // zones of listed members, where the view prefers zones
	empty bool            // no listed member has an address

	mu    sync.Mutex
	made  map[formKey]*encoded // nil: refused, and there was nothing earlier
	hosts map[string][]byte    // virtual hosts for composites, by the Clusters in them
	// earlier are the bytes of views before this one, for what was not asked for
	// since: a resource that is refused stays as it last was.
	earlier map[formKey]*encoded
}

func newRenderer(cfg renderConfig) *renderer {
	return &renderer{cfg: cfg, services: make(map[views.Name]*serviceBytes)}
}

// resource returns the resource of one service, or nil where there is none. One
// that is refused is answered with its last good bytes.
func (r *renderer) resource(t typ, v *views.View, n resourceName, rd rendering) *encoded {
	port, ok := portOf(v, n.port)
	if !ok || rd.envoy && (t == lds || t == rds) {
		return nil
	}
	s := r.bytesOf(v)
	k := s.key(t, n.port, rd)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.made[k]; ok {
		return e
	}
	e, err := encode(v, n.text, port, k, s.earlier[k] == nil)
	if err != nil {
		e = s.earlier[k]
		r.report(t, n.text, err)
	}
	delete(s.earlier, k)
	s.made[k] = e
	return e
}

// forget drops what is kept of a service that was deleted, or is new: a service
// of the same name shares nothing with the one before it.
func (r *renderer) forget(n views.Name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.services, n)
}

// sweep drops what is kept of services for which keep is false: those that are
// gone, and that were rendered once more after they were forgotten.
func (r *renderer) sweep(keep func(views.Name) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.services, func(n views.Name, _ *serviceBytes) bool { return !keep(n) })
}

func (r *renderer) report(t typ, name string, reason error) {
	if r.cfg.refused != nil {
		r.cfg.refused(t, name, reason)
	}
}

// bytesOf returns the place for the view's bytes. A newer view takes the place
// of an older one; an older one, read by a stream a moment ago, gets a place
// that nobody keeps.
func (r *renderer) bytesOf(v *views.View) *serviceBytes {
	r.mu.RLock()
	s := r.services[v.Name]
	r.mu.RUnlock()
	if s != nil && s.view == v {
		return s
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s = r.services[v.Name]
	switch {
	case s == nil:
		s = newServiceBytes(v, nil)
	case s.view == v:
		return s
	case v.Version().Less(s.view.Version()):
		return newServiceBytes(v, nil)
	default:
		s = newServiceBytes(v, s)
	}
	r.services[v.Name] = s
	return s
}

func newServiceBytes(v *views.View, before *serviceBytes) *serviceBytes {
	s := &serviceBytes{view: v, made: make(map[formKey]*encoded, 4), hosts: make(map[string][]byte, 1), empty: true}
	if v.PreferZone {
		s.zones = make(map[string]bool)
	}
	for _, m := range v.Members {
		if !m.Listed || !m.Endpoint.Addr.IsValid() {
			continue
		}
		s.empty = false
		if !v.PreferZone {
			break
		}
		s.zones[m.Zone] = true
	}
	if before != nil {
		s.inherit(before)
	}
	return s
}

// inherit takes over what an earlier view leaves: what was made of its
// configuration, while that is the same, and otherwise the last good bytes.
func (s *serviceBytes) inherit(before *serviceBytes) {
	before.mu.Lock()
	defer before.mu.Unlock()
	s.earlier = make(map[formKey]*encoded, len(before.made)+len(before.earlier))
	maps.Copy(s.earlier, before.earlier)
	same := before.view.Config == s.view.Config && before.view.ConfigHash == s.view.ConfigHash
	for k, e := range before.made {
		switch {
		case same && k.typ != eds:
			s.made[k] = e
		case e != nil:
			s.earlier[k] = e
		}
	}
	if same {
		maps.Copy(s.hosts, before.hosts)
	}
}

// key reduces what is known of a client to what matters for the resource.
func (s *serviceBytes) key(t typ, port uint16, rd rendering) formKey {
	k := formKey{typ: t, port: port, shape: shapeGRPC}
	switch {
	case rd.envoy:
		k.shape = shapeEnvoy
	case t == eds && rd.java && s.empty:
		k.shape = shapeDrop
	case t == eds:
		k.shape = shapePerEndpoint + shape(s.view.Forms[rd.size])
	}
	if t == eds && s.view.PreferZone && s.zones[rd.zone] {
		k.zone = rd.zone
	}
	return k
}

// encode builds one resource, checks it against the rules of its clients, and
// encodes it. Assignments change all the time and are written by rules that
// keep those of the clients (wire.go): the first of a rendering is checked like
// everything else, later ones are not.
func encode(v *views.View, name string, port int, k formKey, first bool) (*encoded, error) {
	if k.typ == eds {
		a, err := assign(v, name, port, k)
		if err != nil {
			return nil, err
		}
		value := a.encode()
		if first {
			if err := checkAssignment(name, value); err != nil {
				return nil, err
			}
		}
		return frame(eds, name, v.Endpoint, k.render(), value)
	}
	var msg resourceMessage
	var err error
	switch k.typ {
	case cds:
		msg, err = cluster(v, name, port, k.shape)
	case lds:
		msg, err = apiListener(name, clusterOf(v, port))
	default:
		msg = apiRoutes(name, clusterOf(v, port))
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s cannot be built: %w", k.typ, name, err)
	}
	if err := msg.ValidateAll(); err != nil {
		return nil, fmt.Errorf("%s %s breaks a rule of its clients: %w", k.typ, name, err)
	}
	return newEncoded(k.typ, name, v.Config, k.render(), msg)
}

// resourceMessage is a generated message with the field rules that Envoy
// enforces: one member that breaks them costs a whole response.
type resourceMessage interface {
	proto.Message
	ValidateAll() error
}
