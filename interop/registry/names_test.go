package registry

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// attempt is one call with a name or a text that may be bad.
type attempt struct {
	what     string
	service  *registryv1.Service  // to be created, or
	instance *registryv1.Instance // to be registered
	field    string               // that the refusal must name
	accepted bool
}

func named(name string) *registryv1.Service {
	s := harness.PutService("x.shop").GetPutService()
	s.Name = name
	return s
}

func inNamespace(ns string) *registryv1.Service {
	s := harness.PutService("x.shop").GetPutService()
	s.Namespace = ns
	return s
}

func instance(change func(*registryv1.Instance)) *registryv1.Instance {
	i := harness.PutInstance("orders.shop", "bad", at(9, 9)).GetPutInstance()
	change(i)
	return i
}

func attempts() []attempt {
	long := func(n int) string { return strings.Repeat("n", n) }
	list := []attempt{
		{what: "63 characters", service: named(long(63)), accepted: true},
		{what: "64 characters", service: named(long(64)), field: "name"},
		{what: "the longest of everything", service: &registryv1.Service{Namespace: long(63), Name: long(62) + "x",
			Ports: []*registryv1.Port{{Name: long(15), Number: 65535, Protocol: registryv1.Protocol_PROTOCOL_GRPC}}, Exposure: &registryv1.Exposure{DnsAnonymous: true}}, accepted: true},
		{what: "a namespace of 64", service: inNamespace(long(64)), field: "namespace"},
		{what: "a namespace with a dot", service: inNamespace("a.b"), field: "namespace"},
		{what: "no namespace", service: inNamespace(""), field: "namespace"},
		{what: "a port name of 16", service: &registryv1.Service{Namespace: "shop", Name: "ports", Ports: []*registryv1.Port{{Name: long(16), Number: 1}}}, field: "ports[0].name"},
		{what: "a port above 65535", service: &registryv1.Service{Namespace: "shop", Name: "ports", Ports: []*registryv1.Port{{Name: "p", Number: 65536}}}, field: "ports[0].number"},
		{what: "no port", service: &registryv1.Service{Namespace: "shop", Name: "ports"}, field: "ports"},
		{what: "an instance id of 70", instance: instance(func(i *registryv1.Instance) { i.Label = long(70) }), field: "label"},
		{what: "a label like a uid", instance: instance(func(i *registryv1.Instance) { i.Label = "i123" }), field: "label"},
		{what: "100 KiB of metadata", instance: instance(func(i *registryv1.Instance) { i.Metadata = map[string]string{"k": long(100 << 10)} }), field: "metadata"},
		{what: "an address that is none", instance: instance(func(i *registryv1.Instance) { i.Endpoint = &registryv1.Instance_Address{Address: "10.0.0.256"} }), field: "address"},
		{what: "an address with a port", instance: instance(func(i *registryv1.Instance) { i.Endpoint = &registryv1.Instance_Address{Address: "10.0.0.1:80"} }), field: "address"},
		{what: "the unspecified address", instance: instance(func(i *registryv1.Instance) { i.Endpoint = &registryv1.Instance_Address{Address: "0.0.0.0"} }), field: "address"},
		{what: "weight 0", instance: instance(func(i *registryv1.Instance) { i.Weight = proto.Uint32(0) }), field: "weight"},
		{what: "a zone in capitals", instance: instance(func(i *registryv1.Instance) { i.Zone = "Zone A" }), field: "zone"},
		{what: "an identity that is none", instance: instance(func(i *registryv1.Instance) { i.Identity = "https://test/ns/shop" }), field: "identity"},
	}
	for _, name := range []string{"orders_v2", "Orders", "orders.", "-orders", "orders-", "a..b", "ördérs", "", "*", "orders/x", "or ders", "xn--..", "orders\x00"} {
		list = append(list, attempt{what: fmt.Sprintf("the name %q", name), service: named(name), field: "name"})
	}
	return list
}

// C31: whatever is refused is refused before anything is stored, and harms no
// stream; whatever is taken resolves on every surface.
func TestC31Names(t *testing.T) {
	t.Parallel()
	w := start(t, harness.ServerConfig{})
	w.api.Apply(t, harness.PutService("orders.shop"), harness.PutInstance("orders.shop", "a", at(1, 0)))
	w.lists("orders.shop", starts, at(1, 0))
	d, s := w.delta(), w.sotw()
	w.ok(d.Subscribe(rawxds.EDS, "orders.shop"))
	w.ok(s.Ask(rawxds.EDS, "orders.shop"))
	w.holds(d, "orders.shop", budget, at(1, 0))
	w.holds(s, "orders.shop", budget, at(1, 0))

	there := false
	updates := func() {
		t.Helper()
		change, want := harness.PutInstance("orders.shop", "b", at(1, 1)), []netip.AddrPort{at(1, 0), at(1, 1)}
		if there {
			change, want = harness.DeleteInstance("orders.shop", "b"), want[:1]
		}
		there = !there
		w.api.Apply(t, change)
		w.holds(d, "orders.shop", budget, want...)
		w.holds(s, "orders.shop", budget, want...)
	}
	for i, a := range attempts() {
		before := w.rows()
		err := w.try(a)
		if a.accepted {
			if err != nil {
				t.Errorf("%s: %v", a.what, err)
				continue
			}
			w.resolvesEverywhere(a.service, i)
			continue
		}
		for began := time.Now(); status.Code(err) == codes.Unavailable && time.Since(began) < starts; {
			err = w.try(a) // it stood behind a write that a busy disk did not confirm in time
		}
		w.refused(a, err)
		if after := w.rows(); !slices.Equal(before, after) {
			t.Errorf("%s: something was stored: %v", a.what, after)
		}
		updates()
	}
	w.invalidText(updates)
}

func (w *world) try(a attempt) error {
	ctx, cancel := context.WithTimeout(context.Background(), starts)
	defer cancel()
	if a.service != nil {
		_, err := w.api.Registry.CreateService(ctx, &registryv1.CreateServiceRequest{Service: a.service})
		return err
	}
	_, err := w.api.Registry.RegisterInstance(ctx, &registryv1.RegisterInstanceRequest{Instance: a.instance})
	return err
}

// refused checks that a refusal names the field and the rule.
func (w *world) refused(a attempt, err error) {
	w.Helper()
	st := status.Convert(err)
	infos, fields := 0, []string{}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			infos++
			if d.GetDomain() != "sightline.dev" || !strings.HasPrefix(d.GetMetadata()["code"], "SL") || d.GetReason() == "" {
				w.Errorf("%s: error info %v", a.what, d)
			}
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				if v.GetReason() == "" || v.GetDescription() == "" {
					w.Errorf("%s: a violation without a rule: %v", a.what, v)
				}
				fields = append(fields, v.GetField())
			}
		}
	}
	names := slices.ContainsFunc(fields, func(f string) bool { return f == a.field || strings.HasSuffix(f, "."+a.field) })
	if st.Code() != codes.InvalidArgument || infos != 1 || !names {
		w.Errorf("%s: %v, fields %q (want %s), %d error infos: %s", a.what, st.Code(), fields, a.field, infos, st.Message())
	}
}

// rows lists all services and instances that are stored.
func (w *world) rows() (names []string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), starts)
	defer cancel()
	svcs, err := w.api.Registry.ListServices(ctx, &registryv1.ListServicesRequest{PageSize: 1000})
	w.ok(err)
	for _, s := range svcs.GetServices() {
		names = append(names, s.GetNamespace()+"/"+s.GetName())
	}
	ins, err := w.api.Registry.ListInstances(ctx, &registryv1.ListInstancesRequest{PageSize: 1000})
	w.ok(err)
	for _, i := range ins.GetInstances() {
		names = append(names, i.GetUid())
	}
	return names
}

// resolvesEverywhere gives a service an instance, and finds it over xDS in both
// protocols, over DNS by A and SRV, and by Resolve.
func (w *world) resolvesEverywhere(svc *registryv1.Service, n int) {
	w.Helper()
	host := svc.GetName() + "." + svc.GetNamespace()
	put := harness.PutInstance(host, strings.Repeat("l", 63), at(100+n, 0))
	put.GetPutInstance().Ports[0].Name = svc.GetPorts()[0].GetName()
	w.api.Apply(w, put)
	w.lists(host, budget, at(100+n, 0))
	d, s := w.delta(), w.sotw()
	w.ok(d.Subscribe(rawxds.EDS, host))
	w.ok(s.Ask(rawxds.EDS, host))
	w.holds(d, host, budget, at(100+n, 0))
	w.holds(s, host, budget, at(100+n, 0))
	if got := harness.RunDig(w, w.s.DNS, host+"."+zone, "A").Data("A"); !slices.Equal(got, []string{at(100+n, 0).Addr().String()}) {
		w.Errorf("A of %s: %v", host, got)
	}
	srv := harness.RunDig(w, w.s.DNS, "_"+svc.GetPorts()[0].GetName()+"._tcp."+host+"."+zone, "SRV")
	if len(srv.Data("SRV")) != 1 || len(srv.Additional) != 1 {
		w.Errorf("SRV of %s: %s", host, srv.Text)
	}
}

// verbatim sends requests as they are: a client library refuses to.
type verbatim struct{}

func (verbatim) Name() string                       { return "proto" }
func (verbatim) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (verbatim) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }

// invalidText sends texts that are not UTF-8.
func (w *world) invalidText(updates func()) {
	w.Helper()
	const mark = "~~"
	marked := instance(func(i *registryv1.Instance) { i.Metadata = map[string]string{"k": mark} })
	name := named("a" + mark)
	for method, m := range map[string]proto.Message{
		"RegisterInstance": &registryv1.RegisterInstanceRequest{Instance: marked},
		"CreateService":    &registryv1.CreateServiceRequest{Service: name},
		"Apply":            &registryv1.ApplyRequest{Changes: []*registryv1.Change{{Change: &registryv1.Change_PutInstance{PutInstance: marked}}}},
	} {
		data, err := proto.Marshal(m)
		w.ok(err)
		before := w.rows()
		var answer []byte
		ctx, cancel := context.WithTimeout(context.Background(), starts)
		err = w.api.Conn.Invoke(ctx, "/sightline.registry.v1.RegistryService/"+method, bytes.ReplaceAll(data, []byte(mark), []byte{0xff, 0xfe}), &answer, grpc.ForceCodec(verbatim{}))
		cancel()
		if err == nil {
			w.Errorf("%s took a text that is not UTF-8", method)
		}
		if after := w.rows(); !slices.Equal(before, after) {
			w.Errorf("%s stored a text that is not UTF-8: %v", method, after)
		}
		updates()
	}
}
