package wire_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
)

func good() *registryv1.Instance {
	return &registryv1.Instance{
		Namespace: "shop", Service: "checkout",
		Endpoint: &registryv1.Instance_Address{Address: "192.0.2.7"},
	}
}

// TestBadForm breaks one rule of form at a time and expects that field and that
// rule, alone.
func TestBadForm(t *testing.T) {
	instance := func(change func(*registryv1.Instance)) error {
		i := good()
		change(i)
		_, err := wire.InstanceFromProto(i)
		return err
	}
	service := func(s *registryv1.Service) error { _, err := wire.ServiceFromProto(s); return err }
	contract := func(c *registryv1.Contract) error { _, err := wire.ContractFromProto(c); return err }
	profile := func(p *registryv1.Profile) error { _, err := wire.ProfileFromProto(p); return err }
	for _, tc := range []struct {
		name, field, rule string
		err               error
	}{
		{"no service", "", wire.RuleRequired, service(nil)},
		{"no instance", "", wire.RuleRequired, func() error { _, err := wire.InstanceFromProto(nil); return err }()},
		{"no contract", "", wire.RuleRequired, contract(nil)},
		{"no profile", "", wire.RuleRequired, profile(nil)},
		{"unknown protocol", "ports[0].protocol", wire.RuleEnum,
			service(&registryv1.Service{Ports: []*registryv1.Port{{Name: "a", Number: 1, Protocol: 99}}})},
		{"port beyond 16 bits", "ports[1].number", wire.RuleRange,
			service(&registryv1.Service{Ports: []*registryv1.Port{{Number: 1}, {Number: 65536 + 80}}})},
		{"reference without namespace", "consumes[1]", wire.RuleReference,
			service(&registryv1.Service{Consumes: []string{"shop/cart", "cart"}})},
		{"reference with three parts", "consumes[0]", wire.RuleReference,
			service(&registryv1.Service{Consumes: []string{"shop/cart/1"}})},
		{"no endpoint", "address", wire.RuleRequired, instance(func(i *registryv1.Instance) { i.Endpoint = nil })},
		{"address with port", "address", wire.RuleAddress, instance(func(i *registryv1.Instance) {
			i.Endpoint = &registryv1.Instance_Address{Address: "192.0.2.7:80"}
		})},
		{"address with zone", "address", wire.RuleAddress, instance(func(i *registryv1.Instance) {
			i.Endpoint = &registryv1.Instance_Address{Address: "fe80::1%eth0"}
		})},
		{"empty host", "host", wire.RuleRequired, instance(func(i *registryv1.Instance) { i.Endpoint = &registryv1.Instance_Host{} })},
		{"empty url", "url", wire.RuleRequired, instance(func(i *registryv1.Instance) { i.Endpoint = &registryv1.Instance_Url{} })},
		{"identity", "identity", wire.RuleIdentity, instance(func(i *registryv1.Instance) { i.Identity = "spiffe://Prod/x" })},
		{"uid", "uid", wire.RuleUID, instance(func(i *registryv1.Instance) { i.Uid = "7" })},
		{"weight zero", "weight", wire.RuleNotZero, instance(func(i *registryv1.Instance) { i.Weight = proto.Uint32(0) })},
		{"lease of 300 years", "lease", wire.RuleDuration, instance(func(i *registryv1.Instance) {
			i.Lease = &durationpb.Duration{Seconds: 300 * 365 * 86400}
		})},
		{"lease of mixed sign", "lease", wire.RuleDuration, instance(func(i *registryv1.Instance) {
			i.Lease = &durationpb.Duration{Seconds: 1, Nanos: -1}
		})},
		{"interval zero", "probe.interval", wire.RuleNotZero,
			contract(&registryv1.Contract{Probe: &registryv1.Probe{Interval: durationpb.New(0)}})},
		{"out-line zero", "callers.out", wire.RuleNotZero,
			contract(&registryv1.Contract{Callers: &registryv1.Score{Out: proto.Float64(0)}})},
		{"out-line not a number", "probes.out", wire.RuleRange,
			contract(&registryv1.Contract{Probes: &registryv1.Score{Out: proto.Float64(math.NaN())}})},
		{"guard zero", "guard_percent", wire.RuleNotZero, contract(&registryv1.Contract{GuardPercent: proto.Uint32(0)})},
		{"quarantine zero", "quarantine.changes", wire.RuleNotZero,
			contract(&registryv1.Contract{Quarantine: &registryv1.Quarantine{Changes: proto.Uint32(0)}})},
		{"authority", "dependencies[0].authority", wire.RuleEnum,
			contract(&registryv1.Contract{Dependencies: []*registryv1.Dependency{{Name: "db", Authority: -3}}})},
		{"empty identity", "identities[0]", wire.RuleIdentity, contract(&registryv1.Contract{Identities: []string{""}})},
		{"class not given", "supplies[0]", wire.RuleEnum,
			profile(&registryv1.Profile{Supplies: []registryv1.EvidenceClass{0}})},
		{"class twice", "supplies[1]", wire.RuleUnique,
			profile(&registryv1.Profile{Supplies: []registryv1.EvidenceClass{2, 2}})},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got registry.Violations
			if !errors.As(tc.err, &got) || len(got) != 1 {
				t.Fatalf("got %v, want one violation", tc.err)
			}
			if got[0].Field != tc.field || got[0].Rule != tc.rule || got[0].Detail == "" {
				t.Errorf("got %+v, want field %q and rule %q with a detail", got[0], tc.field, tc.rule)
			}
		})
	}
}

// TestEveryProblemIsReported breaks several fields at once.
func TestEveryProblemIsReported(t *testing.T) {
	i := good()
	i.Uid, i.Identity, i.Weight = "x", "y", proto.Uint32(0)
	_, err := wire.InstanceFromProto(i)
	var got registry.Violations
	if !errors.As(err, &got) || len(got) != 3 {
		t.Fatalf("got %v, want three violations", err)
	}
}

// TestRampZeroIsNoRamp tells "no ramp" from "not given".
func TestRampZeroIsNoRamp(t *testing.T) {
	for _, tc := range []struct {
		given  *durationpb.Duration
		want   time.Duration
		noRamp bool
	}{
		{nil, 0, false},
		{durationpb.New(0), 0, true},
		{durationpb.New(time.Minute), time.Minute, false},
	} {
		c, err := wire.ContractFromProto(&registryv1.Contract{Ramp: tc.given})
		if err != nil {
			t.Fatal(err)
		}
		if c.Ramp != tc.want || c.NoRamp != tc.noRamp {
			t.Errorf("ramp %v: got %v, no ramp %v", tc.given, c.Ramp, c.NoRamp)
		}
	}
}

// TestNotGivenIsTheDefault reads unspecified enumerations as the core's zero.
func TestNotGivenIsTheDefault(t *testing.T) {
	s, err := wire.ServiceFromProto(&registryv1.Service{Ports: []*registryv1.Port{{Name: "a", Number: 1}}})
	if err != nil || s.Ports[0].Protocol != registry.TCP {
		t.Errorf("got %+v, %v", s, err)
	}
	c, err := wire.ContractFromProto(&registryv1.Contract{})
	if err != nil || c.Silence != registry.SilenceUnknown || c.Locality != registry.Spread || c.GRPC != registry.FormPerEndpoint {
		t.Errorf("got %+v, %v", c, err)
	}
}

// TestNothingIsShared changes the message after it was read.
func TestNothingIsShared(t *testing.T) {
	i := good()
	i.Metadata = map[string]string{"k": "v"}
	got, err := wire.InstanceFromProto(i)
	if err != nil {
		t.Fatal(err)
	}
	i.Metadata["k"] = "other"
	if got.Metadata["k"] != "v" {
		t.Error("the row shares its metadata with the message")
	}
	p := wire.InstanceToProto(got)
	p.Metadata["k"] = "other"
	if got.Metadata["k"] != "v" {
		t.Error("the message shares its metadata with the row")
	}
}
