package registryapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/desired"
	"github.com/sightlinedev/sightline/server/status"
)

// TestServices walks a service through its life.
func TestServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		made, err := w.CreateService(as(operator), &registryv1.CreateServiceRequest{Service: service("shop", "checkout")})
		if err != nil || made.GetService().GetSource() != "api" || made.GetService().GetRevision() == 0 {
			t.Fatalf("created %v, %v", made, err)
		}
		_, err = w.CreateService(as(operator), &registryv1.CreateServiceRequest{Service: service("shop", "checkout")})
		wants(t, err, codes.AlreadyExists, status.AlreadyExists)
		_, err = w.UpdateService(as(operator), &registryv1.UpdateServiceRequest{Service: service("shop", "none")})
		wants(t, err, codes.NotFound, status.NotFound)

		row := proto.Clone(made.GetService()).(*registryv1.Service)
		row.Exposure = &registryv1.Exposure{DnsAnonymous: true}
		dry, err := w.UpdateService(as(operator), &registryv1.UpdateServiceRequest{Service: row, ValidateOnly: true})
		if got := w.get("shop", "checkout"); err != nil || !dry.GetService().GetExposure().GetDnsAnonymous() || got.GetExposure().GetDnsAnonymous() {
			t.Errorf("a dry run answered %v, %v and left %v", dry, err, got)
		}
		next, err := w.UpdateService(as(operator), &registryv1.UpdateServiceRequest{Service: row})
		if got := w.get("shop", "checkout"); err != nil || !proto.Equal(got, next.GetService()) || got.GetRevision() <= row.GetRevision() {
			t.Errorf("updated to %v, %v; held is %v", next, err, got)
		}
		row.Exposure = nil // on what was read before the update
		_, err = w.UpdateService(as(operator), &registryv1.UpdateServiceRequest{Service: row})
		wants(t, err, codes.Aborted, status.RevisionConflict)
		_, err = w.DeleteService(as(operator), &registryv1.DeleteServiceRequest{Namespace: "shop", Name: "checkout", Revision: 1})
		wants(t, err, codes.Aborted, status.RevisionConflict)

		if _, err := w.DeleteService(as(operator), &registryv1.DeleteServiceRequest{Namespace: "shop", Name: "checkout"}); err != nil {
			t.Error(err)
		}
		if n := w.disk.size(); n > 1 { // the counters stay
			t.Errorf("%d rows are left", n)
		}
		_, err = w.DeleteService(as(operator), &registryv1.DeleteServiceRequest{Namespace: "shop", Name: "checkout"})
		wants(t, err, codes.NotFound, status.NotFound)
		_, err = w.GetService(t.Context(), &registryv1.GetServiceRequest{Namespace: "shop", Name: "checkout"})
		wants(t, err, codes.Unauthenticated, status.NoIdentity)
	})
}

func (w *world) get(ns, name string) *registryv1.Service {
	w.t.Helper()
	resp, err := w.GetService(as(operator), &registryv1.GetServiceRequest{Namespace: ns, Name: name})
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.GetService()
}

// TestContractsAndProfiles: fields that are not given stay absent, and the
// effective contract has them all.
func TestContractsAndProfiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("shop/checkout")
		profile := &registryv1.Profile{Namespace: "shop", Name: "go", Supplies: []registryv1.EvidenceClass{registryv1.EvidenceClass_EVIDENCE_CLASS_SELF}}
		if put, err := w.PutProfile(as(operator), &registryv1.PutProfileRequest{Profile: profile}); err != nil || put.GetProfile().GetRevision() == 0 {
			t.Fatalf("%v, %v", put, err)
		}
		if got, err := w.GetProfile(as(checkout), &registryv1.GetProfileRequest{Namespace: "shop", Name: "go"}); err != nil || len(got.GetProfile().GetSupplies()) != 1 {
			t.Errorf("%v, %v", got, err)
		}
		if list, err := w.ListProfiles(as(checkout), &registryv1.ListProfilesRequest{}); err != nil || len(list.GetProfiles()) != 1 {
			t.Errorf("%v, %v", list, err)
		}
		contract := &registryv1.Contract{Namespace: "shop", Name: "checkout", Lease: durationpb.New(10 * time.Second)}
		put, err := w.PutContract(as(operator), &registryv1.PutContractRequest{Contract: contract})
		if err != nil || put.GetContract().GetProbe() != nil {
			t.Fatalf("%v, %v", put, err)
		}
		got, err := w.GetContract(as(checkout), &registryv1.GetContractRequest{Namespace: "shop", Name: "checkout"})
		if err != nil || got.GetContract().GetProbe() != nil || got.GetEffective().GetProbe() == nil || got.GetEffective().GetLease().AsDuration() != 10*time.Second {
			t.Errorf("%v, %v", got, err)
		}
		if list, err := w.ListContracts(as(operator), &registryv1.ListContractsRequest{Namespace: "shop"}); err != nil || len(list.GetContracts()) != 1 {
			t.Errorf("%v, %v", list, err)
		}
		_, err = w.PutContract(as(operator), &registryv1.PutContractRequest{Contract: &registryv1.Contract{Namespace: "shop", Name: "checkout", Revision: 7}})
		wants(t, err, codes.Aborted, status.RevisionConflict)
		svc := service("shop", "pay")
		svc.Contract = "checkout"
		if _, err := w.CreateService(as(operator), &registryv1.CreateServiceRequest{Service: svc}); err != nil {
			t.Fatal(err)
		}
		_, err = w.DeleteContract(as(operator), &registryv1.DeleteContractRequest{Namespace: "shop", Name: "checkout"})
		wants(t, err, codes.FailedPrecondition, status.StillReferenced)
		if _, err = w.DeleteService(as(operator), &registryv1.DeleteServiceRequest{Namespace: "shop", Name: "pay"}); err != nil {
			t.Error(err)
		}
		if del, err := w.DeleteContract(as(operator), &registryv1.DeleteContractRequest{Namespace: "shop", Name: "checkout"}); err != nil || del.GetRevision() == 0 {
			t.Errorf("%v, %v", del, err)
		}
		_, err = w.GetContract(as(ledger), &registryv1.GetContractRequest{Namespace: "shop", Name: "checkout"})
		wants(t, err, codes.NotFound, status.NotFound)
	})
}

// TestNamesThatNothingCouldResolve (C31): refused with the field and the rule,
// and nothing is stored.
func TestNamesThatNothingCouldResolve(t *testing.T) {
	long := strings.Repeat("a", 64)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("shop/orders", "shop/"+long[:63])
		before := w.disk.size()
		for _, name := range []string{long, "orders_v2", "Orders", "orders.", "-orders", "orders-", "a..b", "ördérs", "", "*", "a b"} {
			_, err := w.CreateService(as(operator), &registryv1.CreateServiceRequest{Service: service("shop", name)})
			wants(t, err, codes.InvalidArgument, status.InvalidField)
			_, err2 := w.CreateService(as(operator), &registryv1.CreateServiceRequest{Service: service(name, "orders")})
			wants(t, err2, codes.InvalidArgument, status.InvalidField)
			if got := fields(err); !slices.Equal(got, []string{"service.name:DNS_LABEL"}) {
				t.Errorf("%q: %v", name, got)
			}
			if got := fields(err2); !slices.Equal(got, []string{"service.namespace:DNS_LABEL"}) {
				t.Errorf("namespace %q: %v", name, got)
			}
			for _, who := range []string{operator, checkout} {
				_, err := w.RegisterInstance(as(who), &registryv1.RegisterInstanceRequest{Instance: instance("shop", name, "a", "10.0.0.1")})
				wants(t, err, codes.InvalidArgument, status.InvalidField)
				if got := fields(err); !slices.Contains(got, "instance.service:DNS_LABEL") {
					t.Errorf("instance of %q: %v", name, got)
				}
			}
		}
		for want, edit := range map[string]func(*registryv1.Instance){
			"instance.label:DNS_LABEL":       func(i *registryv1.Instance) { i.Label = strings.Repeat("b", 70) },
			"instance.label:RESERVED":        func(i *registryv1.Instance) { i.Label = "i17" },
			"instance.zone:DNS_LABEL":        func(i *registryv1.Instance) { i.Zone = "Zone A" },
			"instance.address:IP_ADDRESS":    func(i *registryv1.Instance) { i.Endpoint = &registryv1.Instance_Address{Address: "10.0.0.256"} },
			"instance.lease:RANGE":           func(i *registryv1.Instance) { i.Lease = durationpb.New(time.Second) },
			"instance.weight:RANGE":          func(i *registryv1.Instance) { i.Weight = proto.Uint32(1001) },
			"instance.metadata:":             func(i *registryv1.Instance) { i.Metadata = map[string]string{"k": strings.Repeat("x", 100<<10)} },
			"instance.identity:SPIFFE_ID":    func(i *registryv1.Instance) { i.Identity = "spiffe://Example.org/ns/shop/sa/a" },
			"instance.uid:UID":               func(i *registryv1.Instance) { i.Uid = "17" },
			"instance.ports[0].number:RANGE": func(i *registryv1.Instance) { i.Ports = []*registryv1.PortNumber{{Name: "grpc", Number: 70000}} },
			"instance.ports[0].name:EXISTS":  func(i *registryv1.Instance) { i.Ports = []*registryv1.PortNumber{{Name: "none", Number: 70}} },
			"instance.profile:EXISTS":        func(i *registryv1.Instance) { i.Profile = "none" },
		} {
			i := instance("shop", "orders", "a", "10.0.0.1")
			edit(i)
			_, err := w.RegisterInstance(as(checkout), &registryv1.RegisterInstanceRequest{Instance: i})
			wants(t, err, codes.InvalidArgument, status.InvalidField)
			if got := fields(err); !slices.ContainsFunc(got, func(f string) bool { return strings.HasPrefix(f, want) }) {
				t.Errorf("want %s, got %v", want, got)
			}
		}
		i := instance("shop", "orders", "a", "10.0.0.1")
		i.Metadata = map[string]string{"k": "\xff\xfe"}
		if _, err := w.RegisterInstance(as(checkout), &registryv1.RegisterInstanceRequest{Instance: i}); err == nil {
			t.Error("bytes that are not UTF-8 were taken")
		}
		_, err := w.RegisterInstance(as(checkout), &registryv1.RegisterInstanceRequest{})
		wants(t, err, codes.InvalidArgument, status.InvalidField)
		if got := fields(err); !slices.Equal(got, []string{"instance:REQUIRED"}) {
			t.Errorf("no instance: %v", got)
		}
		if after := w.disk.size(); after != before {
			t.Errorf("%d rows became %d", before, after)
		}
		w.registerAs(checkout, "shop/orders", "b", "10.0.0.2") // the service goes on
	})
}

// TestRowsBelongToTheirSource: what a file wrote, the API does not change.
func TestRowsBelongToTheirSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		uid := w.fileRows()
		id := uid.String()
		for name, call := range map[string]func() error{
			"update service": func() error {
				_, err := w.UpdateService(as(operator), &registryv1.UpdateServiceRequest{Service: service("shop", "checkout")})
				return err
			},
			"delete service": func() error {
				_, err := w.DeleteService(as(operator), &registryv1.DeleteServiceRequest{Namespace: "shop", Name: "checkout"})
				return err
			},
			"update instance": func() error {
				i := instance("shop", "checkout", "a", "10.0.0.1")
				i.Uid = id
				_, err := w.UpdateInstance(as(checkout), &registryv1.UpdateInstanceRequest{Instance: i})
				return err
			},
			"deregister": func() error {
				_, err := w.DeregisterInstance(as(checkout), &registryv1.DeregisterInstanceRequest{Instance: id})
				return err
			},
			"drain": func() error {
				_, err := w.DeregisterInstance(as(operator), &registryv1.DeregisterInstanceRequest{Instance: id, Grace: durationpb.New(time.Minute)})
				return err
			},
			"apply": func() error {
				_, err := w.Apply(as(operator), &registryv1.ApplyRequest{Changes: []*registryv1.Change{
					{Change: &registryv1.Change_PutService{PutService: service("shop", "checkout")}},
				}})
				return err
			},
		} {
			t.Log(name)
			wants(t, call(), codes.FailedPrecondition, status.WrongSource)
		}
		if i, ok := w.writer.Lookup(uid); !ok || i.Draining {
			t.Errorf("the file's instance is %+v, %v", i, ok)
		}
	})
}

// fileRows stores a service with one instance as a file source would.
func (w *world) fileRows() registry.UID {
	w.t.Helper()
	svc := registry.Service{
		Name: registry.Name{Namespace: "shop", Service: "checkout"}, Source: "file:main",
		Ports: []registry.Port{{Name: "grpc", Number: 9090, Protocol: registry.GRPC}},
	}
	row := registry.Instance{
		Service: svc.Name, Label: "a", Identity: idOf(checkout), Endpoint: registry.Endpoint{Addr: addrOf("10.0.0.1")},
		Proof: registry.ByAuthority, Source: "file:main",
	}
	res, err := w.writer.Write(w.t.Context(), desired.Request{Mutations: []registry.Mutation{
		registry.PutService{Row: svc}, registry.PutInstance{Row: row},
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	return res.Outcomes[1].UID
}

// TestUnknownAndForbiddenAreAlike: the same bytes, but for the name that the
// caller sent (I14).
func TestUnknownAndForbiddenAreAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("bank/ledger")
		held := w.registerAs(ledger, "bank/ledger", "a", "10.0.0.1").GetUid()
		unknown := "i" + strings.Repeat("9", len(held)-1)
		contract := &registryv1.Contract{Namespace: "bank", Name: "ledger"}
		if _, err := w.PutContract(as(operator), &registryv1.PutContractRequest{Contract: contract}); err != nil {
			t.Fatal(err)
		}
		profile := &registryv1.Profile{Namespace: "bank", Name: "ledger"}
		if _, err := w.PutProfile(as(operator), &registryv1.PutProfileRequest{Profile: profile}); err != nil {
			t.Fatal(err)
		}
		for name, call := range map[string]func(who, name, uid string) error{
			"service": func(who, name, _ string) error {
				_, err := w.GetService(as(who), &registryv1.GetServiceRequest{Namespace: "bank", Name: name})
				return err
			},
			"contract": func(who, name, _ string) error {
				_, err := w.GetContract(as(who), &registryv1.GetContractRequest{Namespace: "bank", Name: name})
				return err
			},
			"profile": func(who, name, _ string) error {
				_, err := w.GetProfile(as(who), &registryv1.GetProfileRequest{Namespace: "bank", Name: name})
				return err
			},
			"instance by label": func(who, name, _ string) error {
				_, err := w.GetInstance(as(who), &registryv1.GetInstanceRequest{Namespace: "bank", Service: name, Instance: "a"})
				return err
			},
			"instance by uid": func(who, _, uid string) error {
				_, err := w.GetInstance(as(who), &registryv1.GetInstanceRequest{Instance: uid})
				return err
			},
			"register": func(who, name, _ string) error {
				_, err := w.RegisterInstance(as(who), &registryv1.RegisterInstanceRequest{Instance: instance("bank", name, "b", "10.0.0.2")})
				return err
			},
			"renew": func(who, _, uid string) error {
				_, err := w.RenewLease(as(who), &registryv1.RenewLeaseRequest{Uid: uid})
				return err
			},
			"update": func(who, name, uid string) error {
				i := instance("bank", name, "a", "10.0.0.1")
				i.Uid = uid
				_, err := w.UpdateInstance(as(who), &registryv1.UpdateInstanceRequest{Instance: i})
				return err
			},
			"deregister": func(who, name, uid string) error {
				_, err := w.DeregisterInstance(as(who), &registryv1.DeregisterInstanceRequest{Namespace: "bank", Service: name, Instance: uid})
				return err
			},
			"hold": func(who, name, _ string) error {
				h, err := w.HoldInstance(as(who))
				if err != nil {
					return err
				}
				h.Send(&registryv1.HoldInstanceRequest{Frame: &registryv1.HoldInstanceRequest_Register{Register: instance("bank", name, "b", "10.0.0.2")}})
				_, err = h.Recv()
				return err
			},
		} {
			for _, who := range []string{cart, stranger, reader} {
				if who == reader && (name == "register" || name == "hold") {
					continue // the table refuses the class
				}
				forbidden, missing := call(who, "ledger", held), call(who, "nobody", unknown)
				if grpcstatus.Code(forbidden) != codes.NotFound {
					t.Errorf("%s as %s: forbidden is %v", name, who, forbidden)
				}
				if a, b := blank(forbidden, "ledger", held), blank(missing, "nobody", unknown); a != b {
					t.Errorf("%s as %s: forbidden\n%s\nmissing\n%s", name, who, a, b)
				}
			}
		}
		for name, list := range map[string]func(who string) int{
			"services": func(who string) int {
				l, _ := w.ListServices(as(who), &registryv1.ListServicesRequest{})
				return len(l.GetServices())
			},
			"contracts": func(who string) int {
				l, _ := w.ListContracts(as(who), &registryv1.ListContractsRequest{Namespace: "bank"})
				return len(l.GetContracts())
			},
			"profiles": func(who string) int {
				l, _ := w.ListProfiles(as(who), &registryv1.ListProfilesRequest{})
				return len(l.GetProfiles())
			},
			"instances": func(who string) int {
				l, _ := w.ListInstances(as(who), &registryv1.ListInstancesRequest{Namespace: "bank", Service: "ledger"})
				return len(l.GetInstances())
			},
		} {
			if list(cart) != 0 || list(stranger) != 0 || list(reader) != 0 || list(ledger) != 1 || list(operator) != 1 {
				t.Errorf("%s: cart %d, stranger %d, reader %d, ledger %d, operator %d", name,
					list(cart), list(stranger), list(reader), list(ledger), list(operator))
			}
		}
	})
}

// blank is a status's bytes as text, the names that the caller sent taken out.
// Maps are written in no order; here they are in one.
func blank(err error, names ...string) string {
	st := grpcstatus.Convert(err)
	text := fmt.Sprintf("%d bytes, %v %q", proto.Size(st.Proto()), st.Code(), st.Message())
	for _, d := range st.Details() {
		b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(d.(proto.Message))
		text += fmt.Sprintf("\n%T %q", d, b)
	}
	for _, n := range names {
		text = strings.ReplaceAll(text, n, "•")
	}
	return text
}
