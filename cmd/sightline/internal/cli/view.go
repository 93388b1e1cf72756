package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	resolvev1 "github.com/sightlinedev/sightline/proto/sightline/resolve/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

func (a *app) viewCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "view", Short: "What is published, version by version"}
	list := &cobra.Command{
		Use: "list", Short: "List the published view of every service", Args: cobra.NoArgs,
		Long:    "Lists the views that callers are given now: the version of their members and weights,\nthat of their configuration, and how far each can be trusted.",
		Example: "  sightline view list\n  sightline view list -n shop -o wide",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
				all, head, err := watchOnce(ctx, conn, a.namespace)
				if err != nil {
					return err
				}
				l := viewListing(all, head)
				if a.namespace != "" {
					l.empty = "no view in namespace " + a.namespace + " (or none that you may see)"
				}
				return a.printer().list(l)
			})
		},
	}
	get := &cobra.Command{
		Use: "get NS/SVC", Short: "The published view of one service, member by member", Args: cobra.ExactArgs(1),
		Long: "Prints what callers of a service are given now; the same as: sightline resolve NS/SVC",
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, name, err := a.splitService(args[0])
			if err != nil {
				return err
			}
			return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
				r, err := resolvev1.NewResolveServiceClient(conn).Resolve(ctx, &resolvev1.ResolveRequest{Namespace: namespace, Name: name})
				if err != nil {
					return err
				}
				return a.printView(r.GetView(), r.GetHeadVersion())
			})
		},
	}
	cmd.AddCommand(list, get, a.viewDiffCommand())
	return cmd
}

// watchOnce takes the views of this moment from a Watch, and ends it.
func watchOnce(ctx context.Context, conn *grpc.ClientConn, namespace string) (all []*viewv1.View, head string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := viewv1.NewViewServiceClient(conn).Watch(ctx)
	if err != nil {
		return nil, "", err
	}
	filter := &viewv1.Filter{NodeId: "sightline view list", UserAgent: "sightline"}
	_ = stream.Send(&viewv1.WatchRequest{Frame: &viewv1.WatchRequest_Filter{Filter: filter}}) // a failure's reason is in Recv
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil, "", err
		}
		if v := r.GetView(); v != nil && (namespace == "" || v.GetNamespace() == namespace) {
			all = append(all, v)
		}
		if b := r.GetBookmark(); b.GetSnapshotComplete() {
			return all, b.GetVersion(), nil
		}
	}
}

func viewListing(all []*viewv1.View, head string) listing {
	l := listing{
		kind:    "ViewList",
		columns: []string{"NAME", "VIEW", "CONFIG", "MEMBERS", "LISTED", "CONFIDENCE", "GUARD", "AGE"},
		wide:    []string{"CONTRACT", "LOCALITY"},
		empty:   "nothing is published: no service is declared. See: sightline apply --help",
	}
	slices.SortFunc(all, func(x, y *viewv1.View) int {
		return cmp.Or(strings.Compare(x.GetNamespace(), y.GetNamespace()), strings.Compare(x.GetName(), y.GetName()))
	})
	now := time.Now()
	for _, v := range all {
		name := v.GetNamespace() + "/" + v.GetName()
		listed := 0
		for _, m := range v.GetMembers() {
			if m.GetListed() {
				listed++
			}
		}
		guard := "no"
		if v.GetGuard().GetTripped() {
			guard = "TRIPPED"
		}
		l.rows = append(l.rows, row{name: name, item: v, cells: []string{
			name, seqOf(v.GetEndpointVersion(), head), seqOf(v.GetConfigVersion(), head), fmt.Sprint(len(v.GetMembers())), fmt.Sprint(listed),
			lower(v.GetConfidence().String(), "CONFIDENCE_"), guard, age(v.GetPublishedTime().AsTime(), now),
			v.GetContract(), lower(v.GetLocality().String(), "LOCALITY_MODE_"),
		}})
	}
	return l
}

func (a *app) viewDiffCommand() *cobra.Command {
	return &cobra.Command{
		Use: "diff [NS/SVC] A..B", Short: "What differs between two published versions", Args: cobra.RangeArgs(1, 2),
		Long: `Prints what callers were given at one version and not at another, a line a member,
with the rule and the numbers of its verdict:
  +  the member is new    -  it is gone    ~  it changed

A version is a view's number as other commands show it (118), or epoch.seq where
it is of before the last start. A.. is up to now. The server keeps views for a
day; what is not kept any more is said.`,
		Example: "  sightline view diff shop/checkout 117..119\n  sightline view diff shop/checkout 117..\n  sightline view diff 117..119",
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &adminv1.DiffViewsRequest{Namespace: a.namespace}
			if len(args) == 2 {
				var err error
				if req.Namespace, req.Name, err = a.splitService(args[0]); err != nil {
					return err
				}
			}
			from, to, ok := strings.Cut(args[len(args)-1], "..")
			if !ok || from == "" {
				return usagef("%q is not a range of versions: write A..B, or A.. for up to now", args[len(args)-1])
			}
			return a.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn, _ target) error {
				c := adminv1.NewAdminServiceClient(conn)
				st, err := c.GetStatus(ctx, &adminv1.GetStatusRequest{})
				if err != nil {
					return err
				}
				head := st.GetStatus().GetHeadVersion()
				if req.FromVersion, err = fullVersion(from, head); err != nil {
					return err
				}
				if req.ToVersion, err = fullVersion(to, head); err != nil {
					return err
				}
				r, err := c.DiffViews(ctx, req)
				if err != nil {
					return err
				}
				return a.printDiffs(r.GetDiffs(), req, head)
			})
		},
	}
}

// fullVersion reads a version as people write it: seq alone is of the current
// epoch. Empty stays empty: the newest.
func fullVersion(text, head string) (string, error) {
	if text == "" || strings.Contains(text, ".") {
		return text, nil
	}
	if strings.Trim(text, "0123456789") != "" {
		return "", usagef("%q is not a version: write its number, or epoch.seq", text)
	}
	epoch, _, _ := strings.Cut(head, ".")
	return epoch + "." + text, nil
}

func (a *app) printDiffs(diffs []*adminv1.ViewDiff, req *adminv1.DiffViewsRequest, head string) error {
	between := seqOf(req.GetFromVersion(), head) + " -> " + seqOf(cmp.Or(req.GetToVersion(), head), head)
	l := listing{kind: "ViewDiffList"}
	for _, d := range diffs {
		l.rows = append(l.rows, row{name: diffName(d), item: d})
	}
	if !a.printer().human() {
		return a.printer().list(l)
	}
	if len(diffs) == 0 {
		fmt.Fprintf(a.err, "%s: nothing that callers are given differs\n", between)
		return nil
	}
	for i, d := range diffs {
		if i > 0 {
			fmt.Fprintln(a.out)
		}
		for _, line := range diffLines(d) {
			fmt.Fprintln(a.out, plain(line))
		}
	}
	differ := "differ"
	if len(diffs) == 1 {
		differ = "differs"
	}
	fmt.Fprintf(a.err, "%s: %s %s\n", between, counted(len(diffs), "service"), differ)
	return nil
}

func diffName(d *adminv1.ViewDiff) string {
	v := cmp.Or(d.GetAfter(), d.GetBefore())
	return v.GetNamespace() + "/" + v.GetName()
}

// diffLines is one service's difference for a person.
func diffLines(d *adminv1.ViewDiff) []string {
	was, is := d.GetBefore(), d.GetAfter()
	switch {
	case was == nil:
		return append([]string{"+ " + diffName(d) + "  the service is new"}, memberLines(d)...)
	case is == nil:
		return append([]string{"- " + diffName(d) + "  the service is gone"}, memberLines(d)...)
	}
	lines := []string{fmt.Sprintf("  %s  view %s -> %s  config %s -> %s", diffName(d), seqOf(was.GetEndpointVersion(), is.GetEndpointVersion()),
		seqOf(is.GetEndpointVersion(), is.GetEndpointVersion()), seqOf(was.GetConfigVersion(), is.GetEndpointVersion()), seqOf(is.GetConfigVersion(), is.GetEndpointVersion()))}
	var head fieldChanges
	head.add("guard", guardLine(was.GetGuard()), guardLine(is.GetGuard()))
	head.add("confidence", lower(was.GetConfidence().String(), "CONFIDENCE_"), lower(is.GetConfidence().String(), "CONFIDENCE_"))
	head.add("contract", was.GetContract(), is.GetContract())
	head.add("ports", portList(was.GetPorts()), portList(is.GetPorts()))
	head.add("identities", strings.Join(was.GetIdentities(), ","), strings.Join(is.GetIdentities(), ","))
	head.add("locality", lower(was.GetLocality().String(), "LOCALITY_MODE_"), lower(is.GetLocality().String(), "LOCALITY_MODE_"))
	head.add("dns-anonymous", yesNo(was.GetDnsAnonymous()), yesNo(is.GetDnsAnonymous()))
	for _, c := range head {
		lines = append(lines, "  ~ "+c)
	}
	return append(lines, memberLines(d)...)
}

// fieldChanges are the fields of one thing that differ, as people read them.
type fieldChanges []string

func (f *fieldChanges) add(field, was, is string) {
	if was != is {
		*f = append(*f, fmt.Sprintf("%s %s -> %s", field, cmp.Or(was, "<none>"), cmp.Or(is, "<none>")))
	}
}

func memberLines(d *adminv1.ViewDiff) (lines []string) {
	for _, m := range d.GetMembers() {
		was, is := m.GetBefore(), m.GetAfter()
		switch {
		case was == nil:
			lines = append(lines, fmt.Sprintf("  + %s  %s  %s%s", shown(is.GetLabel(), is.GetUid()), memberAddress(is), memberWords(is), reason(is)))
		case is == nil:
			lines = append(lines, fmt.Sprintf("  - %s  %s  %s", shown(was.GetLabel(), was.GetUid()), memberAddress(was), memberWords(was)))
		default:
			lines = append(lines, fmt.Sprintf("  ~ %s  %s%s", shown(is.GetLabel(), is.GetUid()), strings.Join(memberChanges(was, is), ", "), reason(is)))
		}
	}
	return lines
}

func memberWords(m *viewv1.Member) string {
	return fmt.Sprintf("%s, weight %d, listed %s", memberState(m), m.GetWeight(), yesNo(m.GetListed()))
}

func memberState(m *viewv1.Member) string {
	word := lower(m.GetState().String(), "STATE_")
	if m.GetDraining() {
		word += ",draining"
	}
	return word
}

func memberChanges(was, is *viewv1.Member) fieldChanges {
	var f fieldChanges
	f.add("state", memberState(was), memberState(is))
	f.add("listed", yesNo(was.GetListed()), yesNo(is.GetListed()))
	f.add("weight", fmt.Sprint(was.GetWeight()), fmt.Sprint(is.GetWeight()))
	f.add("base weight", fmt.Sprint(was.GetBaseWeight()), fmt.Sprint(is.GetBaseWeight()))
	f.add("address", memberAddress(was), memberAddress(is))
	f.add("zone", was.GetZone(), is.GetZone())
	f.add("identity", was.GetIdentity(), is.GetIdentity())
	f.add("last resort", yesNo(was.GetLastResort()), yesNo(is.GetLastResort()))
	f.add("label", was.GetLabel(), is.GetLabel())
	f.add("capability", was.GetCapability(), is.GetCapability())
	if len(f) == 0 {
		f = fieldChanges{"something that is not shown here; see -o json"}
	}
	return f
}

// reason is why a member stands as it does.
func reason(m *viewv1.Member) string {
	e := m.GetEvidence()
	if e.GetRule() == "" {
		return ""
	}
	return "   " + e.GetRule() + ": " + e.GetDetail()
}
