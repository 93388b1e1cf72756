package authz_test

import (
	"strings"
	"testing"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
)

const td = "prod.example"

// callers has one identity of each class.
var callers = map[identity.Class]identity.Principal{
	identity.Anonymous:     {},
	identity.Workload:      {ID: identity.MustParse("spiffe://prod.example/ns/shop/sa/web")},
	identity.Agent:         {ID: identity.MustParse("spiffe://prod.example/sightline/agent/n1")},
	identity.Prober:        {ID: identity.MustParse("spiffe://prod.example/sightline/prober/p1")},
	identity.Reconciler:    {ID: identity.MustParse("spiffe://prod.example/sightline/reconciler/k1")},
	identity.Peer:          {ID: identity.MustParse("spiffe://prod.example/sightline/peer/eu")},
	identity.Replica:       {ID: identity.MustParse("spiffe://prod.example/sightline/replica/r1")},
	identity.Reader:        {ID: identity.MustParse("spiffe://prod.example/sightline/reader/dash")},
	identity.Operator:      {ID: identity.MustParse("spiffe://prod.example/sightline/operator/ann")},
	identity.SecurityAdmin: {ID: identity.MustParse("spiffe://prod.example/sightline/security-admin/bo")},
}

// TestTable spells the cells of RELIABILITY.md §5 out, one letter a class in
// the order of identity.Classes: - none, st status only, v visible, s self,
// o own, a assigned, c cluster, g granted, w owner, A all.
func TestTable(t *testing.T) {
	letters := map[authz.Scope]string{authz.None: "-", authz.StatusOnly: "t", authz.Visible: "v", authz.Self: "s", authz.Own: "o",
		authz.Assigned: "a", authz.Cluster: "c", authz.Granted: "g", authz.Owner: "w", authz.All: "A"}
	want := map[string]string{ //                                         anon work agent prob reco peer repl read oper sec
		"/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources": "-vv-------",
		"/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources":  "-vv-------",
		"/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats":                "-vv-------",
		"/envoy.service.status.v3.ClientStatusDiscoveryService/StreamClientStatus":         "-ooac-AgAA",
		"/envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus":          "-ooac-AgAA",
		"/sightline.resolve.v1.ResolveService/Resolve":                                     "-vva-vAgAA",
		"/sightline.view.v1.ViewService/Watch":                                             "-vva-vAgAA",
		"/sightline.admin.v1.AdminService/GetStatus":                                       "-ooac-AgAA",
		"/sightline.admin.v1.AdminService/ListClients":                                     "-ooac-AgAA",
		"/sightline.admin.v1.AdminService/DescribeClient":                                  "-ooac-AgAA",
		"/sightline.admin.v1.AdminService/DiffViews":                                       "-ooac-AgAA",
		"/sightline.admin.v1.AdminService/ListTransitions":                                 "-ooac-AgAA",
		"/sightline.admin.v1.AdminService/Explain":                                         "-o-----gAA",
		"/sightline.admin.v1.AdminService/Tap":                                             "-------gAA",
		"/sightline.admin.v1.AdminService/ListQuarantines":                                 "-ooac-AgAA",
		"/sightline.admin.v1.AdminService/ReleaseQuarantine":                               "--------AA",
		"/sightline.admin.v1.AdminService/ReleaseBrake":                                    "--------AA",
		"/sightline.admin.v1.AdminService/TestContract":                                    "-o-----gAA",
		"/sightline.registry.v1.RegistryService/Apply":                                     "--------wA",
		"/sightline.registry.v1.RegistryService/CreateService":                             "--------wA",
		"/sightline.registry.v1.RegistryService/UpdateService":                             "--------wA",
		"/sightline.registry.v1.RegistryService/DeleteService":                             "--------wA",
		"/sightline.registry.v1.RegistryService/PutProfile":                                "--------wA",
		"/sightline.registry.v1.RegistryService/PutContract":                               "--------w-",
		"/sightline.registry.v1.RegistryService/DeleteContract":                            "--------w-",
		"/sightline.registry.v1.RegistryService/RegisterInstance":                          "-s--c---A-",
		"/sightline.registry.v1.RegistryService/HoldInstance":                              "-s--c---A-",
		"/sightline.registry.v1.RegistryService/RenewLease":                                "-s--c---A-",
		"/sightline.registry.v1.RegistryService/UpdateInstance":                            "-s--c---A-",
		"/sightline.registry.v1.RegistryService/DeregisterInstance":                        "-s--c---A-",
		"/sightline.registry.v1.RegistryService/GetService":                                "-ooac-AgAA",
		"/sightline.registry.v1.RegistryService/ListServices":                              "-ooac-AgAA",
		"/sightline.registry.v1.RegistryService/GetContract":                               "-ooac-AgAA",
		"/sightline.registry.v1.RegistryService/ListContracts":                             "-ooac-AgAA",
		"/sightline.registry.v1.RegistryService/GetProfile":                                "-ooac-AgAA",
		"/sightline.registry.v1.RegistryService/ListProfiles":                              "-ooac-AgAA",
		"/sightline.registry.v1.RegistryService/GetInstance":                               "-ooac-AgAA",
		"/sightline.registry.v1.RegistryService/ListInstances":                             "-ooac-AgAA",
		"/sightline.health.v1.ReportService/ReportSelf":                                    "-s--------",
		"/sightline.health.v1.ReportService/ReportProbes":                                  "---a------",
		"/sightline.health.v1.ReportService/ReportOutcomes":                                "-vv-------",
		"/sightline.health.v1.ReportService/WatchAssignment":                               "---s------",
		"/grpc.health.v1.Health/Check":                                                     "tttttttttt",
		"/grpc.health.v1.Health/Watch":                                                     "tttttttttt",
		"/grpc.health.v1.Health/List":                                                      "tttttttttt",
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":                        "-------AAA",
		"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo":                   "-------AAA",
	}
	table := authz.NewTable(td, false)
	seen := 0
	for method := range table.Methods() {
		got := ""
		for _, class := range identity.Classes {
			a := table.Check(method, callers[class])
			got += letters[a.Scope]
			if a.Rule == "" || !a.Known {
				t.Errorf("%s, %v: a decision without a rule: %+v", method, class, a)
			}
		}
		if got != want[method] {
			t.Errorf("%s: %s, want %q", method, got, want[method])
		}
		seen++
	}
	if seen != len(want) {
		t.Errorf("%d rows, want %d", seen, len(want))
	}
}

// TestReflectionOpensInDev: to every identity, and nothing else opens with it.
func TestReflectionOpensInDev(t *testing.T) {
	dev, strict := authz.NewTable(td, true), authz.NewTable(td, false)
	for method := range dev.Methods() {
		for class, who := range callers {
			a, b := dev.Check(method, who), strict.Check(method, who)
			isReflection := strings.Contains(method, "reflection")
			switch {
			case isReflection && a.Allowed() != (class != identity.Anonymous):
				t.Errorf("%s, %v in dev: %+v", method, class, a)
			case !isReflection && a != b:
				t.Errorf("%s, %v: dev says %+v, production %+v", method, class, a, b)
			}
		}
	}
}

// TestOddPathsAreRefused: nothing but the exact full method name has a row.
func TestOddPathsAreRefused(t *testing.T) {
	table := authz.NewTable(td, true)
	admin := callers[identity.SecurityAdmin]
	for _, path := range []string{"", "/", "//", "sightline.resolve.v1.ResolveService/Resolve", "/sightline.resolve.v1.ResolveService/Resolve/",
		"//sightline.resolve.v1.ResolveService/Resolve", "/sightline.resolve.v1.ResolveService/resolve", "/SIGHTLINE.RESOLVE.V1.RESOLVESERVICE/RESOLVE",
		"/sightline.resolve.v1.ResolveService", "/sightline.resolve.v1.ResolveService/*", "/sightline.resolve.v1.ResolveService/%52esolve", "*"} {
		if a := table.Check(path, admin); a.Allowed() || a.Known {
			t.Errorf("%q: %+v", path, a)
		}
	}
}

// TestForeignRolesAreRefused: a role's path in another trust domain is worth
// nothing, for any method but those open to all.
func TestForeignRolesAreRefused(t *testing.T) {
	table := authz.NewTable(td, true)
	for method := range table.Methods() {
		for class, who := range callers {
			if class <= identity.Workload {
				continue
			}
			foreign := identity.Principal{ID: identity.MustParse("spiffe://other.example" + who.ID.Path())}
			if a := table.Check(method, foreign); a.Allowed() {
				t.Errorf("%s, %v: %+v", method, foreign, a)
			}
		}
	}
}

// TestCanReport and CanRegister: about oneself, and for whom else.
func TestObjectRules(t *testing.T) {
	web, other := callers[identity.Workload], identity.MustParse("spiffe://prod.example/ns/shop/sa/db")
	for _, row := range []struct {
		name string
		got  authz.Decision
		want bool
	}{
		{"report on oneself", authz.CanReport(web, web.ID), true},
		{"report on another", authz.CanReport(web, other), false},
		{"report on nobody's", authz.CanReport(web, identity.ID{}), false},
		{"anonymous reports on nobody's", authz.CanReport(identity.Principal{}, identity.ID{}), false},
		{"operator reports on another", authz.CanReport(callers[identity.Operator], other), false},
		{"register oneself", authz.CanRegister(web, web.ID), true},
		{"register another", authz.CanRegister(web, other), false},
		{"operator registers", authz.CanRegister(callers[identity.Operator], other), true},
		{"reconciler registers", authz.CanRegister(callers[identity.Reconciler], other), true},
		{"reader registers", authz.CanRegister(callers[identity.Reader], other), false},
		{"anonymous registers", authz.CanRegister(identity.Principal{}, identity.ID{}), false},
	} {
		if row.got.Allowed != row.want || row.got.Rule == "" {
			t.Errorf("%s: %+v", row.name, row.got)
		}
	}
}
