package registryapi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/status"
)

// TestPrivilegedAttemptsAreRecorded, refused ones too, whatever refuses them;
// dry runs and what instances do for themselves are not.
func TestPrivilegedAttemptsAreRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fileRows()
		w.create("shop/pay")
		w.registerAs(checkout, "shop/pay", "a", "10.0.0.2")
		w.disk.audit()
		bad := service("shop", "x")
		bad.Ports[0].Number = 70000 // does not even convert
		for name, call := range map[string]func() error{
			"CreateService allowed service/shop/new": func() error {
				_, err := w.CreateService(as(operator), &registryv1.CreateServiceRequest{Service: service("shop", "new")})
				return err
			},
			"CreateService refused service/shop/Bad": func() error {
				_, err := w.CreateService(as(operator), &registryv1.CreateServiceRequest{Service: service("shop", "Bad")})
				return err
			},
			"UpdateService refused service/shop/x": func() error {
				_, err := w.UpdateService(as(operator), &registryv1.UpdateServiceRequest{Service: bad})
				return err
			},
			"DeleteService refused service/shop/checkout": func() error { // the file's
				_, err := w.DeleteService(as(operator), &registryv1.DeleteServiceRequest{Namespace: "shop", Name: "checkout"})
				return err
			},
			"RegisterInstance refused instance/shop/none/a": func() error {
				_, err := w.RegisterInstance(as(operator), &registryv1.RegisterInstanceRequest{Instance: instance("shop", "none", "a", "10.0.0.9")})
				return err
			},
			"UpdateInstance refused instance/shop/pay/none": func() error {
				_, err := w.UpdateInstance(as(operator), &registryv1.UpdateInstanceRequest{Instance: instance("shop", "pay", "none", "10.0.0.9")})
				return err
			},
			"DeregisterInstance allowed instance/shop/pay/a": func() error {
				_, err := w.DeregisterInstance(as(operator), &registryv1.DeregisterInstanceRequest{Namespace: "shop", Service: "pay", Instance: "a"})
				return err
			},
			"DeregisterInstance refused instance//i7": func() error {
				_, err := w.DeregisterInstance(as(operator), &registryv1.DeregisterInstanceRequest{Instance: "i7"})
				return err
			},
			"Apply refused 1 objects": func() error {
				_, err := w.Apply(as(operator), &registryv1.ApplyRequest{Changes: []*registryv1.Change{{}}})
				return err
			},
			"PutProfile allowed profile/shop/go": func() error {
				_, err := w.PutProfile(as(operator), &registryv1.PutProfileRequest{Profile: &registryv1.Profile{Namespace: "shop", Name: "go"}})
				return err
			},
			"PutContract allowed contract/shop/slow": func() error {
				_, err := w.PutContract(as(operator), &registryv1.PutContractRequest{Contract: &registryv1.Contract{Namespace: "shop", Name: "slow"}})
				return err
			},
			"DeleteContract refused contract/shop/none": func() error {
				_, err := w.DeleteContract(as(operator), &registryv1.DeleteContractRequest{Namespace: "shop", Name: "none"})
				return err
			},
		} {
			action, rest, _ := strings.Cut(name, " ")
			verdict, target, _ := strings.Cut(rest, " ")
			err := call()
			records := w.disk.audit()
			if len(records) != 1 {
				t.Errorf("%s: %d records, answer %v", name, len(records), err)
				continue
			}
			r := records[0]
			if r.Action != action || r.Allowed != (verdict == "allowed") || r.Allowed != (err == nil) || r.Actor != operator ||
				r.Address != "10.9.9.9" || r.At.IsZero() || (r.Reason == "") != r.Allowed || !strings.HasPrefix(r.Target, target[:strings.LastIndex(target, "/")+1]) {
				t.Errorf("%s: %+v, answer %v", name, r, err)
			}
		}
		w.registerAs(checkout, "shop/pay", "b", "10.0.0.3")
		if _, err := w.CreateService(as(operator), &registryv1.CreateServiceRequest{Service: service("shop", "dry"), ValidateOnly: true}); err != nil {
			t.Error(err)
		}
		if got := w.disk.audit(); len(got) != 0 {
			t.Errorf("recorded %+v", got)
		}
		// A refusal that cannot be recorded is not told: nobody may try unseen.
		w.disk.set(errBroken)
		_, err := w.CreateService(as(operator), &registryv1.CreateServiceRequest{Service: bad})
		wants(t, err, codes.Unavailable, status.StoreUnavailable)
	})
}

// TestARepeatedRequestIsAnsweredOnce, also while the first is on its way.
func TestARepeatedRequestIsAnsweredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("shop/checkout")
		req := &registryv1.RegisterInstanceRequest{Instance: instance("shop", "checkout", "", "10.0.0.1"), RequestId: "r1"}
		first, err := w.RegisterInstance(as(checkout), req)
		if err != nil {
			t.Fatal(err)
		}
		again, err := w.RegisterInstance(as(checkout), req)
		if err != nil || !proto.Equal(first, again) {
			t.Errorf("%v became %v, %v", first, again, err)
		}
		time.Sleep(11 * time.Minute)
		if later, err := w.RegisterInstance(as(checkout), req); err != nil || later.GetInstance().GetUid() == first.GetInstance().GetUid() {
			t.Errorf("after eleven minutes: %v, %v", later, err)
		}

		del := &registryv1.DeleteServiceRequest{Namespace: "shop", Name: "checkout", RequestId: "d", ValidateOnly: true}
		if _, err := w.DeleteService(as(operator), del); err != nil {
			t.Fatal(err)
		}
		del.ValidateOnly = false
		if _, err := w.DeleteService(as(operator), del); err != nil {
			t.Fatal(err)
		}
		if _, err := w.GetService(as(operator), &registryv1.GetServiceRequest{Namespace: "shop", Name: "checkout"}); err == nil {
			t.Error("a dry run was taken for the deed")
		}
		if _, err := w.DeleteService(as(operator), del); err != nil {
			t.Errorf("asked again: %v", err)
		}
		_, err = w.DeleteService(as(reader), del) // somebody else's request of the same id
		wants(t, err, codes.NotFound, status.NotFound)

		w.create("shop/checkout")
		resume := w.disk.stall()
		var both [2]*registryv1.CreateServiceResponse
		var wait sync.WaitGroup
		for i := range both {
			wait.Go(func() {
				both[i], _ = w.CreateService(as(operator), &registryv1.CreateServiceRequest{Service: service("shop", "slow"), RequestId: "s"})
			})
		}
		synctest.Wait()
		resume()
		wait.Wait()
		if both[0] == nil || !proto.Equal(both[0], both[1]) {
			t.Errorf("two at once: %v", both)
		}
		refused := &registryv1.CreateServiceRequest{Service: service("shop", "slow"), RequestId: "t"}
		_, err = w.CreateService(as(operator), refused)
		wants(t, err, codes.AlreadyExists, status.AlreadyExists)
		w.DeleteService(as(operator), &registryv1.DeleteServiceRequest{Namespace: "shop", Name: "slow"})
		if _, err = w.CreateService(as(operator), refused); err != nil {
			t.Errorf("a refusal was remembered: %v", err)
		}
	})
}

// TestPagesUnderChange: what is there all along is listed once, whatever comes
// and goes between two pages.
func TestPagesUnderChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for i := range 9 {
			w.create(fmt.Sprintf("shop/s%d", i))
		}
		w.create("shop-a/z", "bank/a")
		var got []string
		token := ""
		for n := 0; n == 0 || token != ""; n++ {
			page, err := w.ListServices(as(operator), &registryv1.ListServicesRequest{PageSize: 3, PageToken: token})
			if err != nil || len(page.GetServices()) > 3 {
				t.Fatal(page, err)
			}
			for _, s := range page.GetServices() {
				got = append(got, s.GetNamespace()+"/"+s.GetName())
			}
			if n == 0 { // the last one given goes, and one comes before it
				w.DeleteService(as(operator), &registryv1.DeleteServiceRequest{Namespace: "shop", Name: "s1"})
				w.create("aaa/new", "shop/s9")
			}
			token = page.GetNextPageToken()
		}
		want := []string{"bank/a", "shop/s0", "shop/s1", "shop/s2", "shop/s3", "shop/s4", "shop/s5", "shop/s6", "shop/s7", "shop/s8", "shop/s9", "shop-a/z"}
		if !slices.Equal(got, want) {
			t.Errorf("listed %v", got)
		}
		page, err := w.ListServices(as(reader), &registryv1.ListServicesRequest{Namespace: "shop", PageSize: 5000})
		if err != nil || len(page.GetServices()) != 9 || page.GetNextPageToken() != "" {
			t.Errorf("a reader of the namespace: %v, %v", page, err)
		}
		page, _ = w.ListServices(as(operator), &registryv1.ListServicesRequest{PageSize: 1})
		for _, token := range []string{"nonsense", page.GetNextPageToken()} {
			_, err = w.ListServices(as(operator), &registryv1.ListServicesRequest{Namespace: "shop", PageToken: token})
			wants(t, err, codes.InvalidArgument, status.InvalidPageToken)
		}
		for i := range 5 {
			w.registerAs(checkout, fmt.Sprintf("shop/s%d", 2+i%2), "", fmt.Sprintf("10.0.0.%d", i+1))
		}
		var uids []string
		for n, token := 0, ""; n == 0 || token != ""; n++ {
			page, err := w.ListInstances(as(checkout), &registryv1.ListInstancesRequest{Namespace: "shop", PageSize: 2, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range page.GetInstances() {
				uids = append(uids, i.GetService()+i.GetUid())
			}
			token = page.GetNextPageToken()
		}
		if len(uids) != 5 || !slices.IsSorted(uids) {
			t.Errorf("listed %v", uids)
		}
	})
}

// TestADiskThatDoesNotWrite: refused in a second at most, with the status of
// the cause; a deregistration leaves at once all the same.
func TestADiskThatDoesNotWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("shop/checkout")
		for i, c := range []struct {
			stop    func() func()
			grpc    codes.Code
			code    status.Code
			waits   time.Duration
			another string
		}{
			{func() func() { w.disk.set(errFull); return func() { w.disk.set(nil) } }, codes.ResourceExhausted, status.StoreFull, 0, "a"},
			{func() func() { w.disk.set(errBroken); return func() { w.disk.set(nil) } }, codes.Unavailable, status.StoreUnavailable, 0, "b"},
			{w.disk.stall, codes.Unavailable, status.StoreUnavailable, time.Second, "c"},
		} {
			uid := w.registerAs(checkout, "shop/checkout", c.another, fmt.Sprintf("10.0.1.%d", i)).GetUid()
			resume := c.stop()
			began := time.Now()
			_, err := w.RegisterInstance(as(checkout), &registryv1.RegisterInstanceRequest{Instance: instance("shop", "checkout", "x", "10.0.0.7")})
			wants(t, err, c.grpc, c.code)
			if took := time.Since(began); took > c.waits {
				t.Errorf("%v after %s", c.code, took)
			}
			if !slices.ContainsFunc(grpcstatus.Convert(err).Details(), func(d any) bool { _, ok := d.(*errdetails.RetryInfo); return ok }) {
				t.Errorf("%v says not when to try again", err)
			}
			_, err = w.DeregisterInstance(as(checkout), &registryv1.DeregisterInstanceRequest{Instance: uid})
			wants(t, err, c.grpc, c.code)
			_, err = w.DeregisterInstance(as(checkout), &registryv1.DeregisterInstanceRequest{Instance: uid})
			wants(t, err, c.grpc, c.code) // a retry is not told that all is done
			_, err = w.DeregisterInstance(as(checkout), &registryv1.DeregisterInstanceRequest{Namespace: "shop", Service: "checkout", Instance: c.another})
			wants(t, err, c.grpc, c.code)
			parsed, _ := registry.ParseUID(uid)
			if _, live := w.writer.Lookup(parsed); live {
				t.Errorf("%v: it is still in the views", c.code)
			}
			_, err = w.DeregisterInstance(as(cart), &registryv1.DeregisterInstanceRequest{Instance: uid})
			wants(t, err, codes.NotFound, status.NotFound) // somebody else's
			resume()
			if _, err := w.DeregisterInstance(as(checkout), &registryv1.DeregisterInstanceRequest{Instance: uid}); err != nil {
				// The retry waits for the same removal, or comes after it.
				wants(t, err, codes.NotFound, status.NotFound)
			}
			time.Sleep(2 * time.Second)
		}
		resume := w.disk.stall()
		ctx, cancel := context.WithTimeout(as(operator), 100*time.Millisecond)
		defer cancel()
		if _, err := w.CreateService(ctx, &registryv1.CreateServiceRequest{Service: service("shop", "y")}); grpcstatus.Code(err) != codes.DeadlineExceeded {
			t.Errorf("the caller's own deadline: %v", err)
		}
		resume()
	})
}

// TestApply: all or nothing, with the path of what is wrong.
func TestApply(t *testing.T) {
	put := func(s *registryv1.Service) *registryv1.Change {
		return &registryv1.Change{Change: &registryv1.Change_PutService{PutService: s}}
	}
	putInstance := func(i *registryv1.Instance) *registryv1.Change {
		i.Identity = checkout
		return &registryv1.Change{Change: &registryv1.Change_PutInstance{PutInstance: i}}
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		apply := func(changes ...*registryv1.Change) ([]string, error) {
			resp, err := w.Apply(as(operator), &registryv1.ApplyRequest{Changes: changes})
			var out []string
			for _, r := range resp.GetResults() {
				out = append(out, strings.TrimPrefix(r.GetOutcome().String(), "OUTCOME_"))
			}
			return out, err
		}
		wrong := service("shop", "pay")
		wrong.Ports = append(wrong.Ports, &registryv1.Port{Name: "admin", Number: 70000, Protocol: registryv1.Protocol_PROTOCOL_TCP})
		twice := service("shop", "pay")
		twice.Ports = append(twice.Ports, proto.Clone(twice.Ports[0]).(*registryv1.Port))
		badInstance := instance("shop", "checkout", "A", "10.0.0.1")
		for want, changes := range map[string][]*registryv1.Change{
			"changes[1].put_service.ports[1].number:RANGE": {put(service("shop", "checkout")), put(wrong)},
			"changes[1].put_service.ports[1].name:UNIQUE":  {put(service("shop", "checkout")), put(twice)},
			"changes[1].put_instance.label:DNS_LABEL":      {put(service("shop", "checkout")), putInstance(badInstance)},
			"changes[1].change:REQUIRED":                   {put(service("shop", "checkout")), {}},
		} {
			_, err := apply(changes...)
			wants(t, err, codes.InvalidArgument, status.InvalidField)
			if got := fields(err); !slices.Contains(got, want) {
				t.Errorf("want %s, got %v in %v", want, got, err)
			}
			if path, _, _ := strings.Cut(want, ":"); !strings.Contains(grpcstatus.Convert(err).Message(), path) {
				t.Errorf("%v does not name %s", err, path)
			}
		}
		_, err := apply(put(service("shop", "checkout")), putInstance(instance("shop", "none", "a", "10.0.0.1")))
		wants(t, err, codes.NotFound, status.NotFound)
		if !strings.HasPrefix(grpcstatus.Convert(err).Message(), "changes[1].put_instance: ") {
			t.Errorf("%v does not say which", err)
		}
		if n := w.disk.size(); n != 0 {
			t.Fatalf("%d rows of refused batches", n)
		}
		w.disk.audit()

		batch := []*registryv1.Change{putInstance(instance("shop", "checkout", "a", "10.0.0.1")), put(service("shop", "checkout"))}
		if got, err := apply(batch...); err != nil || !slices.Equal(got, []string{"CREATED", "CREATED"}) {
			t.Fatal(got, err)
		}
		if r := w.disk.audit(); len(r) != 1 || !r[0].Allowed || r[0].Details["0"] != "changes[0].put_instance.shop/checkout/a" {
			t.Errorf("recorded %+v", r)
		}
		if got := w.renewals(); len(got) != 1 {
			t.Errorf("renewed %v", got)
		}
		if got, err := apply(batch...); err != nil || !slices.Equal(got, []string{"UNCHANGED", "UNCHANGED"}) {
			t.Error(got, err)
		}
		changed := service("shop", "checkout")
		changed.Exposure = &registryv1.Exposure{DnsAnonymous: true}
		if got, err := apply(put(changed)); err != nil || !slices.Equal(got, []string{"CONFIGURED"}) {
			t.Error(got, err)
		}
		name := &registryv1.ObjectName{Namespace: "shop", Name: "checkout"}
		gone := []*registryv1.Change{
			{Change: &registryv1.Change_DeleteInstance{DeleteInstance: &registryv1.InstanceName{Namespace: "shop", Service: "checkout", Instance: "a"}}},
			{Change: &registryv1.Change_DeleteInstance{DeleteInstance: &registryv1.InstanceName{Instance: "i9"}}},
			{Change: &registryv1.Change_DeleteService{DeleteService: name}},
			{Change: &registryv1.Change_DeleteContract{DeleteContract: name}},
			{Change: &registryv1.Change_DeleteProfile{DeleteProfile: name}},
		}
		if got, err := apply(gone...); err != nil || !slices.Equal(got, []string{"DELETED", "ABSENT", "DELETED", "ABSENT", "ABSENT"}) {
			t.Error(got, err)
		}
		if got, err := apply(gone...); err != nil || !slices.Equal(got, []string{"ABSENT", "ABSENT", "ABSENT", "ABSENT", "ABSENT"}) {
			t.Error(got, err)
		}
		many := make([]*registryv1.Change, 1001)
		for i := range many {
			many[i] = put(service("shop", fmt.Sprintf("s%d", i)))
		}
		_, err = apply(many...)
		wants(t, err, codes.ResourceExhausted, status.LimitExceeded)

		// What is going and not durable yet is waited for, not called absent.
		w.create("shop/checkout")
		resume := w.disk.stall()
		_, err = apply(gone[2])
		wants(t, err, codes.Unavailable, status.StoreUnavailable)
		_, err = apply(gone[2])
		wants(t, err, codes.Unavailable, status.StoreUnavailable)
		resume()
	})
}
