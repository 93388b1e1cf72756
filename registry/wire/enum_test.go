package wire_test

import (
	"testing"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
)

// TestEnumerations pins every value of every enumeration by name, since the
// conversion relies on both sides having the same order.
func TestEnumerations(t *testing.T) {
	check(t, map[registry.Protocol]string{
		registry.TCP: "PROTOCOL_TCP", registry.UDP: "PROTOCOL_UDP", registry.HTTP: "PROTOCOL_HTTP",
		registry.HTTP2: "PROTOCOL_HTTP2", registry.GRPC: "PROTOCOL_GRPC",
	}, len(registryv1.Protocol_name), func(v registry.Protocol) string {
		return wire.ServiceToProto(&registry.Service{Ports: []registry.Port{{Protocol: v}}}).Ports[0].Protocol.String()
	})
	check(t, map[registry.ProofKind]string{
		registry.Unproved: "PROOF_KIND_UNPROVED", registry.ByAuthority: "PROOF_KIND_AUTHORITY",
		registry.ByOperator: "PROOF_KIND_OPERATOR", registry.ByDialBack: "PROOF_KIND_DIAL_BACK",
		registry.ByChallenge: "PROOF_KIND_CHALLENGE", registry.ByRegistration: "PROOF_KIND_REGISTRATION",
	}, len(registryv1.ProofKind_name), func(v registry.ProofKind) string {
		return wire.InstanceToProto(&registry.Instance{Proof: v}).Proof.String()
	})
	check(t, map[registry.EvidenceClass]string{
		registry.ClassProbe: "EVIDENCE_CLASS_PROBE", registry.ClassSelf: "EVIDENCE_CLASS_SELF",
		registry.ClassCallers: "EVIDENCE_CLASS_CALLERS",
	}, len(registryv1.EvidenceClass_name), func(v registry.EvidenceClass) string {
		return wire.ProfileToProto(&registry.Profile{Supplies: registry.ClassSet(0).With(v)}).Supplies[0].String()
	})
	contract := func(c registry.Contract) *registryv1.Contract { return wire.ContractToProto(&c) }
	check(t, map[registry.ProbeKind]string{
		registry.ProbeTCP: "PROBE_KIND_TCP", registry.ProbeGRPC: "PROBE_KIND_GRPC", registry.ProbeHTTP: "PROBE_KIND_HTTP",
	}, len(registryv1.ProbeKind_name), func(v registry.ProbeKind) string {
		return contract(registry.Contract{Probe: registry.Probe{Kind: v, Port: "p"}}).Probe.Kind.String()
	})
	check(t, map[registry.DependencyAuthority]string{
		registry.ReduceWeight: "DEPENDENCY_AUTHORITY_REDUCE_WEIGHT", registry.Informational: "DEPENDENCY_AUTHORITY_INFORMATIONAL",
		registry.Unreadiness: "DEPENDENCY_AUTHORITY_UNREADINESS",
	}, len(registryv1.DependencyAuthority_name), func(v registry.DependencyAuthority) string {
		return contract(registry.Contract{Dependencies: []registry.Dependency{{Authority: v}}}).Dependencies[0].Authority.String()
	})
	check(t, map[registry.SilencePolicy]string{
		registry.SilenceUnknown: "SILENCE_POLICY_UNKNOWN", registry.SilenceIneligible: "SILENCE_POLICY_INELIGIBLE",
	}, len(registryv1.SilencePolicy_name), func(v registry.SilencePolicy) string {
		return contract(registry.Contract{Silence: v}).Silence.String()
	})
	check(t, map[registry.LocalityMode]string{
		registry.Spread: "LOCALITY_MODE_SPREAD", registry.PreferZone: "LOCALITY_MODE_PREFER_ZONE",
	}, len(registryv1.LocalityMode_name), func(v registry.LocalityMode) string {
		return contract(registry.Contract{Locality: v}).Locality.String()
	})
	check(t, map[registry.GRPCForm]string{
		registry.FormPerEndpoint: "GRPC_FORM_PER_ENDPOINT", registry.FormFlat: "GRPC_FORM_FLAT",
	}, len(registryv1.GrpcForm_name), func(v registry.GRPCForm) string {
		return contract(registry.Contract{GRPC: v}).GrpcForm.String()
	})
}

// check compares names, and that the wire has one value more, "unspecified".
func check[R comparable](t *testing.T, want map[R]string, wireValues int, name func(R) string) {
	t.Helper()
	if wireValues != len(want)+1 {
		t.Errorf("%T: %d values on the wire, %d in the core", *new(R), wireValues, len(want))
	}
	for v, n := range want {
		if got := name(v); got != n {
			t.Errorf("%T %v is written as %s, want %s", v, v, got, n)
		}
	}
}
