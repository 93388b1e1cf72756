package wire_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sightlinedev/sightline/identity"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
)

// TestPathNamesAField breaks as many of registry's rules as there are, and
// expects the path of each violation to lead to a field of the message.
func TestPathNamesAField(t *testing.T) {
	long := strings.Repeat("x", 70)
	bad := map[proto.Message]registry.Violations{
		&registryv1.Service{}: registry.CheckService(&registry.Service{
			Name: registry.Name{Namespace: "A", Service: "B"}, Contract: "C", Profile: "D",
			Ports:       []registry.Port{{Name: "-", Protocol: 77}},
			Consumes:    []registry.Name{{Namespace: "E", Service: "F"}},
			Annotations: map[string]string{"": "", "k": "\xff"},
		}),
		&registryv1.Instance{}: append(registry.CheckInstance(&registry.Instance{
			Label: "i7", Ports: []registry.PortNumber{{Name: long}}, Region: long, Zone: long, Weight: 5000,
			Profile: long, Lease: time.Second, Proof: 77, Metadata: map[string]string{"k": "\xff"},
		}), append(endpoint(registry.Endpoint{Addr: netip.IPv6Unspecified()}),
			append(endpoint(registry.Endpoint{Host: "A_"}), endpoint(registry.Endpoint{URL: "ftp:"})...)...)...),
		&registryv1.Contract{}: append(registry.CheckContract(&registry.Contract{
			Lease: time.Second, CallersHalfLife: time.Hour, ProbeHalfLife: time.Hour, CallersOut: 2, ProbeOut: 2,
			Probe:      registry.Probe{Kind: 77, Port: long, Service: "s", Path: "p", Interval: time.Hour, Timeout: -1},
			ReturnHold: time.Second, GuardPercent: 200, Ramp: time.Second,
			Dependencies: []registry.Dependency{{Weight: 900, Authority: 77}}, Require: 0xff,
			Silence: 77, Locality: 77, GRPC: 77, Quarantine: registry.Quarantine{Changes: 1, Window: 1, Hold: 1, MaxHold: -1},
			Identities: make([]identity.ID, 2),
		}), registry.CheckContract(&registry.Contract{CallersIn: 0.9, ProbeIn: 0.9})...),
		&registryv1.Profile{}: registry.CheckProfile(&registry.Profile{Supplies: 0xff}),
	}
	for m, violations := range bad {
		desc := m.ProtoReflect().Descriptor()
		if len(violations) < 4 {
			t.Errorf("%s: only %v", desc.Name(), violations)
		}
		for _, v := range violations {
			if path := wire.Path(v.Field); !leads(desc, path) {
				t.Errorf("%s: %q becomes %q, which is no field", desc.Name(), v.Field, path)
			}
		}
	}
}

func endpoint(e registry.Endpoint) registry.Violations {
	return registry.CheckInstance(&registry.Instance{Endpoint: e, Weight: 1, Source: "api"})
}

// leads follows a path through a message's fields; what comes after a scalar
// list or a map is a part of the value.
func leads(desc protoreflect.MessageDescriptor, path string) bool {
	head, rest, _ := strings.Cut(path, ".")
	name, _, _ := strings.Cut(head, "[")
	fd := desc.Fields().ByName(protoreflect.Name(name))
	switch {
	case fd == nil:
		return false
	case rest == "" || fd.IsMap() || fd.Message() == nil:
		return true
	}
	return leads(fd.Message(), rest)
}

// TestPathKeepsOwnPaths checks that what wire itself reports is not renamed.
func TestPathKeepsOwnPaths(t *testing.T) {
	_, err := wire.ContractFromProto(&registryv1.Contract{GuardPercent: proto.Uint32(0)})
	var v registry.Violations
	if !errors.As(err, &v) || wire.Path(v[0].Field) != "guard_percent" {
		t.Errorf("got %v", err)
	}
	for _, own := range []string{"callers.out", "dependencies[1].weight_percent", "ports[0].number", "probe.service"} {
		if wire.Path(own) != own {
			t.Errorf("%q becomes %q", own, wire.Path(own))
		}
	}
}
