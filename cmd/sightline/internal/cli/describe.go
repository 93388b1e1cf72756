package cli

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

// serviceDescription is a service as declared, and how it stands.
type serviceDescription struct {
	Service     message `json:"service"`
	Explanation message `json:"explanation"`
}

// instanceDescription is an instance as registered, and how it and its service stand.
type instanceDescription struct {
	Instance    message `json:"instance"`
	Explanation message `json:"explanation"`
}

func (a *app) describeService(ctx context.Context, conn *grpc.ClientConn, namespace, name string) error {
	svc, err := registryv1.NewRegistryServiceClient(conn).GetService(ctx, &registryv1.GetServiceRequest{Namespace: namespace, Name: name})
	if err != nil {
		return err
	}
	why, err := adminv1.NewAdminServiceClient(conn).Explain(ctx, &adminv1.ExplainRequest{Namespace: namespace, Name: name})
	if err != nil {
		return err
	}
	s, e := svc.GetService(), why.GetService()
	if !a.printer().human() {
		item := serviceDescription{message{s}, message{e}}
		return a.printer().list(listing{kind: "ServiceDescriptionList", rows: []row{{name: "service/" + namespace + "/" + name, item: item}}})
	}
	a.line("name", "%s/%s", s.GetNamespace(), s.GetName())
	a.line("host", "%s.%s", s.GetName(), s.GetNamespace())
	a.line("ports", "%s", cell(portList(s.GetPorts())))
	a.line("source", "%s", s.GetSource())
	a.line("contract", "%s", cell(e.GetContract()))
	a.view(e)
	fmt.Fprintln(a.out)
	return a.printer().list(explanationListing(e))
}

// view says what callers are given of a service now.
func (a *app) view(e *adminv1.ServiceExplanation) {
	if e.GetEndpointVersion() == "" {
		a.line("view", "not published yet")
	} else {
		a.line("view", "%s  config %s  confidence %s", seqOf(e.GetEndpointVersion(), e.GetEndpointVersion()),
			seqOf(e.GetConfigVersion(), e.GetEndpointVersion()), lower(e.GetConfidence().String(), "CONFIDENCE_"))
		a.line("guard", "%s", guardLine(e.GetGuard()))
	}
	a.dampers(e.GetDampers())
}

func guardLine(g *viewv1.Guard) string {
	state := "not tripped"
	if g.GetTripped() {
		state = "TRIPPED, all are listed"
	}
	return fmt.Sprintf("%s: %d of %d serving, floor %d%%", state, g.GetServing(), g.GetMembers(), g.GetFloorPercent())
}

// dampers says what holds a change back now.
func (a *app) dampers(all []*adminv1.Damper) {
	for _, d := range all {
		until := ""
		if d.GetEndTime() != nil {
			until = " until " + d.GetEndTime().AsTime().Local().Format("15:04:05")
		}
		a.line("held by", "%s%s: %s", lower(d.GetKind().String(), "DAMPER_KIND_"), until, d.GetDetail())
	}
}

func explanationListing(e *adminv1.ServiceExplanation) listing {
	service := e.GetNamespace() + "/" + e.GetName()
	l := listing{
		kind:    "InstanceExplanationList",
		columns: []string{"NAME", "STATE", "ADMITTED", "LISTED", "WEIGHT", "RULE", "DETAIL"},
		wide:    []string{"UID"},
		empty:   "no instances: nothing is registered for this service. See: sightline instance register --help",
	}
	for _, i := range e.GetInstances() {
		name := shown(i.GetLabel(), i.GetUid())
		l.rows = append(l.rows, row{name: service + "/" + name, item: i, cells: []string{
			name, stateWord(i), yesNo(i.GetMember()), yesNo(i.GetListed()),
			fmt.Sprint(i.GetWeight()), i.GetRule(), i.GetDetail(), i.GetUid(),
		}})
	}
	return l
}

func stateWord(i *adminv1.InstanceExplanation) string {
	word := lower(i.GetState().String(), "STATE_")
	if i.GetDraining() {
		word += ",draining"
	}
	return word
}

func (a *app) describeInstance(ctx context.Context, conn *grpc.ClientConn, namespace, service, instance string) error {
	got, err := registryv1.NewRegistryServiceClient(conn).GetInstance(ctx, &registryv1.GetInstanceRequest{Namespace: namespace, Service: service, Instance: instance})
	if err != nil {
		return err
	}
	i := got.GetInstance()
	why, err := adminv1.NewAdminServiceClient(conn).Explain(ctx, &adminv1.ExplainRequest{Namespace: namespace, Name: service, Instance: i.GetUid()})
	if err != nil {
		return err
	}
	e := why.GetService()
	if !a.printer().human() {
		item := instanceDescription{message{i}, message{e}}
		return a.printer().list(listing{kind: "InstanceDescriptionList", rows: []row{{name: instanceName(i), item: item}}})
	}
	a.line("name", "%s", strings.TrimPrefix(instanceName(i), "instance/"))
	a.line("uid", "%s", i.GetUid())
	a.line("address", "%s", instanceAddress(i))
	a.line("identity", "%s", cell(i.GetIdentity()))
	a.line("where", "region %s  zone %s", cell(i.GetRegion()), cell(i.GetZone()))
	a.line("lease", "%s  proof %s  source %s", leaseOf(i), lower(i.GetProof().String(), "PROOF_KIND_"), i.GetSource())
	for _, x := range e.GetInstances() {
		a.verdict(x)
	}
	a.view(e)
	return nil
}

// verdict is what is decided of one instance, and what it was decided from.
func (a *app) verdict(x *adminv1.InstanceExplanation) {
	a.line("verdict", "%s by %s: %s", stateWord(x), cell(x.GetRule()), x.GetDetail())
	a.line("callers", "admitted %s  listed %s  weight %d of %d", yesNo(x.GetMember()), yesNo(x.GetListed()), x.GetWeight(), x.GetBaseWeight())
	for _, c := range x.GetEvidence() {
		if !c.GetSupplied() {
			continue
		}
		word := "silent"
		if c.GetFresh() {
			word = "fresh"
		}
		a.line("evidence", "%s %s: %s", lower(c.GetEvidenceClass().String(), "EVIDENCE_CLASS_"), word, c.GetDetail())
	}
	a.dampers(x.GetDampers())
}
