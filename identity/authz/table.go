package authz

import (
	"iter"
	"maps"
	"slices"

	"github.com/sightlinedev/sightline/identity"
)

// Scope is how far a class's right to call a method reaches. The zero value is
// no right at all. What a scope means for the names inside a request is
// decided by the object rules: CanResolve, CanReport, CanRegister.
type Scope uint8

// The scopes.
const (
	None       Scope = iota
	StatusOnly       // the state of a server, no names
	Visible          // services that CanResolve allows
	Self             // the caller's own instances
	Own              // the caller's own service or node
	Assigned         // a prober's assignment
	Cluster          // what the caller's orchestrator holds
	Granted          // what a grant of the policy names
	Owner            // what the caller owns; audited
	All
)

var scopeNames = [...]string{"none", "status-only", "visible", "self", "own", "assigned", "cluster", "granted", "owner", "all"}

// String is the scope's name in the documents.
func (s Scope) String() string { return scopeNames[s] }

// Row is one method's cells, by class.
type Row [len(identity.Classes)]Scope

// Table is the authorisation table: one row for every RPC that any listener
// serves. A method without a row, a cell that is not filled, and a path that is
// not exactly a full method name (no leading slash, another case) are refused.
// It is immutable.
type Table struct {
	rows        map[string]Row
	trustDomain string
}

// Access is the table's answer about one call.
type Access struct {
	Scope Scope
	Known bool   // the table has a row for the method
	Rule  string // what decided, for people
}

// Allowed reports whether the method may be called at all.
func (a Access) Allowed() bool { return a.Scope != None }

// NewTable returns the table for a region of one trust domain. openReflection
// lets every class use server reflection (dev and demo).
func NewTable(trustDomain string, openReflection bool) *Table {
	rows := make(map[string]Row)
	for _, group := range [...]map[string]Row{xdsRows(), apiRows(), registryRows(), reportRows(), commonRows(openReflection)} {
		maps.Copy(rows, group)
	}
	return &Table{rows: rows, trustDomain: trustDomain}
}

// Check looks a full method name up for a caller. A role's ID of another trust
// domain has no role here, and no workload's right either: nobody but this
// region's trust domain hands out roles.
func (t *Table) Check(method string, who identity.Principal) Access {
	row, known := t.rows[method]
	class := who.Class()
	switch {
	case !known:
		return Access{Rule: "no row for the method"}
	case class > identity.Workload && who.ID.TrustDomain() != t.trustDomain:
		return Access{Known: true, Rule: "a role of another trust domain"}
	case row[class] == None:
		return Access{Known: true, Rule: "class " + class.String() + " may not call it"}
	}
	return Access{Scope: row[class], Known: true, Rule: "class " + class.String() + ": " + row[class].String()}
}

// Methods yields every method that has a row, in order.
func (t *Table) Methods() iter.Seq[string] {
	return slices.Values(slices.Sorted(maps.Keys(t.rows)))
}

// with returns the row with one cell filled.
func (r Row) with(c identity.Class, s Scope) Row {
	r[c] = s
	return r
}

// full is the right of operators and security administrators over everything.
func full() Row {
	return Row{}.with(identity.Operator, All).with(identity.SecurityAdmin, All)
}

func rowsOf(r Row, service string, methods ...string) map[string]Row {
	rows := make(map[string]Row, len(methods))
	for _, m := range methods {
		rows["/"+service+"/"+m] = r
	}
	return rows
}

func merge(groups ...map[string]Row) map[string]Row {
	all := make(map[string]Row)
	for _, g := range groups {
		maps.Copy(all, g)
	}
	return all
}

// readers may see what describes the region: each its part.
func readers() Row {
	return full().with(identity.Workload, Own).with(identity.Agent, Own).with(identity.Prober, Assigned).
		with(identity.Reconciler, Cluster).with(identity.Replica, All).with(identity.Reader, Granted)
}

func xdsRows() map[string]Row {
	callers := Row{}.with(identity.Workload, Visible).with(identity.Agent, Visible)
	return merge(
		rowsOf(callers, "envoy.service.discovery.v3.AggregatedDiscoveryService",
			"StreamAggregatedResources", "DeltaAggregatedResources"),
		rowsOf(callers, "envoy.service.load_stats.v3.LoadReportingService", "StreamLoadStats"),
		rowsOf(readers(), "envoy.service.status.v3.ClientStatusDiscoveryService",
			"StreamClientStatus", "FetchClientStatus"))
}

func apiRows() map[string]Row {
	resolve := full().with(identity.Workload, Visible).with(identity.Agent, Visible).with(identity.Prober, Assigned).
		with(identity.Peer, Visible).with(identity.Replica, All).with(identity.Reader, Granted)
	return merge(
		rowsOf(resolve, "sightline.resolve.v1.ResolveService", "Resolve"),
		rowsOf(resolve, "sightline.view.v1.ViewService", "Watch"),
		rowsOf(readers(), "sightline.admin.v1.AdminService",
			"GetStatus", "ListClients", "DescribeClient", "DiffViews", "ListTransitions", "ListQuarantines"),
		rowsOf(full().with(identity.Workload, Own).with(identity.Reader, Granted),
			"sightline.admin.v1.AdminService", "Explain", "TestContract"),
		// Audited before their effect.
		rowsOf(full(), "sightline.admin.v1.AdminService", "ReleaseQuarantine", "ReleaseBrake"),
		// Samples of everybody's callers, refused ones too.
		rowsOf(full().with(identity.Reader, Granted), "sightline.admin.v1.AdminService", "Tap"))
}

func registryRows() map[string]Row {
	const service = "sightline.registry.v1.RegistryService"
	authors := Row{}.with(identity.Operator, Owner).with(identity.SecurityAdmin, All)
	return merge(
		rowsOf(authors, service, "Apply", "CreateService", "UpdateService", "DeleteService", "PutProfile"),
		rowsOf(Row{}.with(identity.Operator, Owner), service, "PutContract", "DeleteContract"),
		rowsOf(Row{}.with(identity.Workload, Self).with(identity.Reconciler, Cluster).with(identity.Operator, All),
			service, "RegisterInstance", "HoldInstance", "RenewLease", "UpdateInstance", "DeregisterInstance"),
		rowsOf(readers(), service, "GetService", "ListServices", "GetContract", "ListContracts",
			"GetProfile", "ListProfiles", "GetInstance", "ListInstances"))
}

func reportRows() map[string]Row {
	const service = "sightline.health.v1.ReportService"
	return merge(
		rowsOf(Row{}.with(identity.Workload, Self), service, "ReportSelf"),
		rowsOf(Row{}.with(identity.Prober, Assigned), service, "ReportProbes"),
		rowsOf(Row{}.with(identity.Workload, Visible).with(identity.Agent, Visible), service, "ReportOutcomes"),
		rowsOf(Row{}.with(identity.Prober, Self), service, "WatchAssignment"))
}

func commonRows(openReflection bool) map[string]Row {
	var everybody, reflection Row
	for i := range everybody {
		everybody[i] = StatusOnly
	}
	reflection = full().with(identity.Reader, All)
	if openReflection {
		for i := range reflection {
			reflection[i] = All
		}
		reflection[identity.Anonymous] = None
	}
	return merge(
		rowsOf(everybody, "grpc.health.v1.Health", "Check", "Watch", "List"),
		rowsOf(reflection, "grpc.reflection.v1.ServerReflection", "ServerReflectionInfo"),
		rowsOf(reflection, "grpc.reflection.v1alpha.ServerReflection", "ServerReflectionInfo"))
}
