package wire

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sightlinedev/sightline/identity"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/views"
)

// ParseView reads a view. The error names the first field that is wrong.
func ParseView(in *viewv1.View) (*views.View, error) {
	v, err := parseHead(in)
	if err != nil {
		return nil, err
	}
	if v.Members, err = parseMembers(in.GetMembers()); err != nil {
		return nil, fmt.Errorf("view of %s: %w", v.Name, err)
	}
	for _, m := range v.Members {
		if m.Listed {
			v.ListedCount++
		}
	}
	return v, nil
}

// ParseDelta reads a delta for a watcher that holds held, and applies it. The
// error is ErrBase when held is not what the delta starts from.
func ParseDelta(in *viewv1.Delta, held *views.View) (*views.View, error) {
	head, err := parseHead(in.GetView())
	if err != nil {
		return nil, err
	}
	d := views.Delta{View: head}
	if d.Base, err = views.ParseVersion(in.GetBaseVersion()); err != nil {
		return nil, fmt.Errorf("delta of %s: base_version: %w", head.Name, err)
	}
	if d.Changed, err = parseMembers(in.GetChanged()); err != nil {
		return nil, fmt.Errorf("delta of %s: %w", head.Name, err)
	}
	for _, s := range in.GetRemovedUids() {
		uid, err := views.ParseUID(s)
		if err != nil {
			return nil, fmt.Errorf("delta of %s: removed_uids: %w", head.Name, err)
		}
		d.Removed = append(d.Removed, uid)
	}
	next, ok := d.Apply(held)
	if !ok {
		return nil, fmt.Errorf("delta of %s from %s: %w", head.Name, d.Base, ErrBase)
	}
	next.ListedCount = 0
	for _, m := range next.Members {
		if m.Listed {
			next.ListedCount++
		}
	}
	return next, nil
}

// ErrBase says that a delta does not start from the view that is held; only a
// whole view helps.
var ErrBase = errors.New("not the view that is held")

// ParseRemoved reads the event that takes a service away.
func ParseRemoved(in *viewv1.Removed) (views.Name, views.Version, error) {
	n, err := parseName(in.GetNamespace(), in.GetName())
	if err != nil {
		return n, views.Version{}, err
	}
	at, err := views.ParseVersion(in.GetVersion())
	if err != nil {
		return n, at, fmt.Errorf("removal of %s: version: %w", n, err)
	}
	return n, at, nil
}

// ParseGenerations reads generations; nil is none.
func ParseGenerations(in *viewv1.Generations) views.Generations {
	return views.Generations{Policy: in.GetPolicy(), Routes: in.GetRoutes()}
}

func parseHead(in *viewv1.View) (*views.View, error) {
	n, err := parseName(in.GetNamespace(), in.GetName())
	if err != nil {
		return nil, err
	}
	v := &views.View{
		Name: n, Revision: in.GetRevision(), DNSAnonymous: in.GetDnsAnonymous(),
		PreferZone:  in.GetLocality() == registryv1.LocalityMode_LOCALITY_MODE_PREFER_ZONE,
		PublishedAt: moment(in.GetPublishedTime()),
		Guard: views.Guard{
			Tripped: in.GetGuard().GetTripped(), Zones: in.GetGuard().GetZones(), Floor: in.GetGuard().GetFloorPercent(),
			Serving: int(in.GetGuard().GetServing()), Members: int(in.GetGuard().GetMembers()),
		},
	}
	for _, step := range []func(*views.View, *viewv1.View) error{parseVersions, parseConfig, parseForms} {
		if err := step(v, in); err != nil {
			return nil, fmt.Errorf("view of %s: %w", n, err)
		}
	}
	return v, nil
}

func parseVersions(v *views.View, in *viewv1.View) (err error) {
	if v.Endpoint, err = views.ParseVersion(in.GetEndpointVersion()); err != nil {
		return fmt.Errorf("endpoint_version: %w", err)
	}
	if v.Config, err = views.ParseVersion(in.GetConfigVersion()); err != nil {
		return fmt.Errorf("config_version: %w", err)
	}
	if len(in.GetEndpointHash()) != len(v.EndpointHash) || len(in.GetConfigHash()) != len(v.ConfigHash) {
		return fmt.Errorf("endpoint_hash and config_hash must have %d bytes", len(v.EndpointHash))
	}
	copy(v.EndpointHash[:], in.GetEndpointHash())
	copy(v.ConfigHash[:], in.GetConfigHash())
	return nil
}

func parseConfig(v *views.View, in *viewv1.View) error {
	for _, p := range in.GetPorts() {
		number, err := port(p.GetNumber())
		if err != nil {
			return fmt.Errorf("port %q: %w", p.GetName(), err)
		}
		protocol := max(p.GetProtocol(), registryv1.Protocol_PROTOCOL_TCP) - 1
		if protocol >= registryv1.Protocol_PROTOCOL_GRPC {
			return fmt.Errorf("port %q: protocol %d is not known", p.GetName(), p.GetProtocol())
		}
		v.Ports = append(v.Ports, views.Port{Name: p.GetName(), Number: number, Protocol: views.Protocol(protocol)})
	}
	for _, s := range in.GetIdentities() {
		id, err := identity.Parse(s)
		if err != nil {
			return fmt.Errorf("identities: %w", err)
		}
		v.Identities = append(v.Identities, id)
	}
	if s := in.GetContract(); s != "" {
		n, err := views.ParseName(s)
		if err != nil {
			return fmt.Errorf("contract: %w", err)
		}
		v.Contract = n
	}
	return nil
}

func parseForms(v *views.View, in *viewv1.View) error {
	for _, f := range in.GetForms() {
		class, form := f.GetSizeClass()-1, f.GetForm()-1
		if class < 0 || class >= viewv1.SizeClass(views.SizeClasses) || form < 0 || form > viewv1.Form(views.Flat) {
			return fmt.Errorf("forms: size class %d with form %d is not known", f.GetSizeClass(), f.GetForm())
		}
		v.Forms[class] = views.Form(form)
	}
	c := in.GetConfidence() - 1
	if c < 0 || c > viewv1.Confidence(views.ConfidenceDegraded) {
		return fmt.Errorf("confidence %d is not known", in.GetConfidence())
	}
	v.Confidence = views.Confidence(c)
	return nil
}

// parseMembers reads members and sorts them by uid; the same uid twice is an error.
func parseMembers(in []*viewv1.Member) ([]*views.Member, error) {
	out := make([]*views.Member, 0, len(in))
	for _, p := range in {
		m, err := parseMember(p)
		if err != nil {
			return nil, fmt.Errorf("member %q: %w", p.GetUid(), err)
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b *views.Member) int { return cmp.Compare(a.UID, b.UID) })
	for i := 1; i < len(out); i++ {
		if out[i].UID == out[i-1].UID {
			return nil, fmt.Errorf("member %s is there twice", out[i].UID)
		}
	}
	return out, nil
}

func parseMember(in *viewv1.Member) (*views.Member, error) {
	uid, err := views.ParseUID(in.GetUid())
	if err != nil {
		return nil, err
	}
	state := in.GetState() - 1
	switch {
	case state < 0 || state > viewv1.State(views.Ineligible):
		return nil, fmt.Errorf("state %d is not known", in.GetState())
	case in.GetWeight() == 0 || in.GetBaseWeight() == 0:
		return nil, errors.New("a weight is at least 1")
	}
	m := &views.Member{
		UID: uid, Label: in.GetLabel(), Region: in.GetRegion(), Zone: in.GetZone(), Capability: in.GetCapability(),
		BaseWeight: in.GetBaseWeight(), Weight: in.GetWeight(), State: views.State(state), Draining: in.GetDraining(),
		Listed: in.GetListed(), LastResort: in.GetLastResort(), OwnLocality: in.GetOwnLocality(),
		Evidence: views.Evidence{Rule: in.GetEvidence().GetRule(), Detail: in.GetEvidence().GetDetail(),
			Since: moment(in.GetEvidence().GetSince())},
	}
	if s := in.GetIdentity(); s != "" {
		if m.Identity, err = identity.Parse(s); err != nil {
			return nil, err
		}
	}
	for _, p := range in.GetPorts() {
		number, err := port(p.GetNumber())
		if err != nil {
			return nil, fmt.Errorf("port %q: %w", p.GetName(), err)
		}
		m.Ports = append(m.Ports, views.PortNumber{Name: p.GetName(), Number: number})
	}
	m.Endpoint, err = parseEndpoint(in)
	return m, err
}

func parseEndpoint(in *viewv1.Member) (views.Endpoint, error) {
	switch e := in.GetEndpoint().(type) {
	case *viewv1.Member_Address:
		addr, err := netip.ParseAddr(e.Address)
		if err != nil {
			return views.Endpoint{}, fmt.Errorf("address: %w", err)
		}
		return views.Endpoint{Addr: addr}, nil
	case *viewv1.Member_Host:
		if e.Host != "" {
			return views.Endpoint{Host: e.Host}, nil
		}
	case *viewv1.Member_Url:
		if e.Url != "" {
			return views.Endpoint{URL: e.Url}, nil
		}
	}
	return views.Endpoint{}, errors.New("endpoint: an address, a host or a url is required")
}

func parseName(namespace, service string) (views.Name, error) {
	return views.ParseName(namespace + "/" + service)
}

func port(n uint32) (uint16, error) {
	if n == 0 || n > 65535 {
		return 0, fmt.Errorf("number %d is not within 1 to 65535", n)
	}
	return uint16(n), nil
}

func moment(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
