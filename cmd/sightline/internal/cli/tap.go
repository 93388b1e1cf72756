package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// tapQuiet is after how long without a sample a person is told why there may be
// none.
const tapQuiet = 5 * time.Second

const tapLong = `Shows the evidence on a service, or on one instance, as it comes in: what was
taken in and what was refused, with the reason. It goes on until Ctrl-C, until
--count samples have come, or for --for.

A sample is lossy by contract: when this command reads too slowly, samples are
left out, and it says how many. Nothing that it does slows the evaluation.

  -o jsonl   one sample a line, as it comes
  -o json    one document at the end; needs --count or --for`

func (a *app) tapCommand() *cobra.Command {
	t := tapping{app: a}
	var names []string
	cmd := &cobra.Command{
		Use: "tap NS/SVC[/INST]", Short: "Live evidence, taken in and refused", Args: cobra.ExactArgs(1),
		Long:    tapLong,
		Example: "  sightline tap shop/checkout\n  sightline tap shop/checkout/checkout-3 --class callers\n  sightline tap shop/checkout --for 30s -o jsonl",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if t.of, err = a.splitSubject(args[0]); err != nil {
				return err
			}
			if t.classes, err = evidenceClasses(names); err != nil {
				return err
			}
			if t.bounded() == 0 && (a.format == "json" || a.format == "yaml") {
				return usagef("-o %s ends with the tap: give --count or --for, or take -o jsonl", a.format)
			}
			return t.run(cmd.Context())
		},
	}
	cmd.Flags().StringSliceVar(&names, "class", nil, "only these classes: probe, self, callers")
	cmd.Flags().IntVar(&t.count, "count", 0, "end after so many samples")
	cmd.Flags().DurationVar(&t.span, "for", 0, "end after so long")
	return cmd
}

func evidenceClasses(names []string) (out []registryv1.EvidenceClass, err error) {
	for _, name := range names {
		c, ok := registryv1.EvidenceClass_value["EVIDENCE_CLASS_"+strings.ToUpper(name)]
		if !ok || c == 0 {
			return nil, usagef("--class %q is not one of probe, self, callers", name)
		}
		out = append(out, registryv1.EvidenceClass(c))
	}
	return out, nil
}

// tapping is one tap.
type tapping struct {
	*app
	of      subject
	classes []registryv1.EvidenceClass
	count   int
	span    time.Duration

	names   map[string]string // instances' names by uid
	why     *adminv1.ServiceExplanation
	samples []*adminv1.Sample // kept for a format of one document
	seen    int
	told    bool // that nothing came, or something did
	lost    uint64
}

// bounded is not 0 where the tap ends by itself.
func (t *tapping) bounded() time.Duration {
	if t.count > 0 && t.span == 0 {
		return time.Hour * 24 * 365
	}
	return t.span
}

func (t *tapping) run(ctx context.Context) error {
	at, err := t.target()
	if err != nil {
		return err
	}
	conn, err := t.dial(at)
	if err != nil {
		return err
	}
	defer conn.Close()
	// What exists, and what it is called, is asked for first: within the timeout.
	first, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	if t.why, err = explanation(first, conn, t.of); err != nil {
		return t.explain(err, conn, at)
	}
	t.names = make(map[string]string)
	for _, x := range t.why.GetInstances() {
		t.names[x.GetUid()] = shown(x.GetLabel(), x.GetUid())
	}
	if b := t.bounded(); b > 0 {
		ctx, cancel = context.WithTimeout(ctx, b)
		defer cancel()
	}
	if err := t.follow(ctx, conn); err != nil {
		return t.explain(err, conn, at)
	}
	return t.finish()
}

// follow reads until the tap is over.
func (t *tapping) follow(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := adminv1.NewAdminServiceClient(conn).Tap(ctx, &adminv1.TapRequest{
		Namespace: t.of.namespace, Name: t.of.service, Instance: t.of.instance, EvidenceClasses: t.classes})
	if err != nil {
		return err
	}
	quiet := time.AfterFunc(tapQuiet, func() { fmt.Fprintln(t.err, t.silence()) })
	defer func() { t.told = !quiet.Stop() }()
	for {
		got, err := stream.Recv()
		switch {
		case err != nil && ctx.Err() != nil, errors.Is(err, io.EOF), status.Code(err) == codes.Canceled,
			status.Code(err) == codes.DeadlineExceeded && t.bounded() > 0:
			return nil // it was asked to end
		case err != nil:
			return err
		}
		quiet.Stop()
		if got.GetLost() > 0 {
			t.lost += got.GetLost()
			fmt.Fprintf(t.err, "%d samples are left out here: they came faster than they were read\n", got.GetLost())
		}
		for _, s := range got.GetSamples() {
			if err := t.take(s); err != nil {
				return err
			}
			if t.seen++; t.seen == t.count {
				return nil
			}
		}
	}
}

// take shows one sample, or keeps it for the end.
func (t *tapping) take(s *adminv1.Sample) error {
	name := t.names[s.GetUid()]
	if name == "" {
		name = cell(s.GetUid())
	}
	switch t.format {
	case "json", "yaml":
		t.samples = append(t.samples, s)
		return nil
	case "jsonl":
		raw, err := encode(s)
		if err == nil {
			_, err = fmt.Fprintln(t.out, string(raw))
		}
		return err
	case "name":
		_, err := fmt.Fprintln(t.out, plain(t.of.namespace+"/"+t.of.service+"/"+name))
		return err
	}
	fate := "taken"
	if !s.GetAccepted() {
		fate = "REFUSED(" + cell(s.GetReason()) + ")"
	}
	_, err := fmt.Fprintf(t.out, "%s  %-14s %-8s %-10s %s  from %s\n", s.GetTime().AsTime().Local().Format("15:04:05.000"), plain(name),
		lower(s.GetEvidenceClass().String(), "EVIDENCE_CLASS_"), fate, plain(sampleText(s)), plain(reporterText(s)))
	return err
}

// sampleText is what the sample says.
func sampleText(s *adminv1.Sample) string {
	text := s.GetDetail()
	if o := s.GetOutcome(); o != nil {
		text = fmt.Sprintf("%d of %d calls failed within %s", o.GetFailed(), o.GetOk()+o.GetFailed(), o.GetInterval().AsDuration().Round(100*time.Millisecond))
		if o.GetRefused() > 0 {
			text += fmt.Sprintf(", %d refused", o.GetRefused())
		}
		if o.GetInProgress() > 0 {
			text += fmt.Sprintf(", %d not ended", o.GetInProgress())
		}
	}
	if s.GetLatency() != nil {
		text += " in " + s.GetLatency().AsDuration().String()
	}
	if s.GetCount() > 1 && s.GetOutcome() == nil {
		text += fmt.Sprintf(" (%d samples)", s.GetCount())
	}
	return text
}

func reporterText(s *adminv1.Sample) string {
	text := s.GetReporter()
	if s.GetZone() != "" {
		text += " zone " + s.GetZone()
	}
	if s.GetAddress() != "" {
		text += " at " + s.GetAddress()
	}
	return text
}

// silence says why there may be no sample: what the runtime gives, and what was
// heard last.
func (t *tapping) silence() string {
	var given, heard []string
	for _, c := range t.why.GetSupplied() {
		if len(t.classes) == 0 || slices.Contains(t.classes, c) {
			given = append(given, lower(c.String(), "EVIDENCE_CLASS_"))
		}
	}
	for _, x := range t.why.GetInstances() {
		for _, c := range x.GetEvidence() {
			if c.GetNewestAge() != nil && slices.Contains(given, className(c)) {
				heard = append(heard, fmt.Sprintf("%s of %s %s before", className(c), shown(x.GetLabel(), x.GetUid()), span(c.GetNewestAge().AsDuration())))
			}
		}
	}
	within := tapQuiet
	if t.span > 0 {
		within = min(within, t.span)
	}
	text := fmt.Sprintf("no sample of %s within %s: ", t.of, within)
	switch {
	case len(t.why.GetInstances()) == 0:
		return text + "it has no instance"
	case len(given) == 0 && len(t.classes) > 0:
		return text + "its capability profile does not supply " + strings.Join(classList(t.classes), ", ")
	case len(given) == 0:
		return text + "its capability profile supplies no evidence class, so nothing is expected"
	case len(heard) == 0:
		return text + "it supplies " + strings.Join(given, ", ") + ", and nobody has reported yet. Is a prober running, do instances report, do callers report outcomes?"
	}
	return text + "it supplies " + strings.Join(given, ", ") + "; last heard when the tap began: " + strings.Join(heard[:min(len(heard), 5)], ", ")
}

func classList(classes []registryv1.EvidenceClass) (out []string) {
	for _, c := range classes {
		out = append(out, lower(c.String(), "EVIDENCE_CLASS_"))
	}
	return out
}

// finish says what came where nothing did, and prints what was kept.
func (t *tapping) finish() error {
	if t.format == "json" || t.format == "yaml" {
		l := listing{kind: "SampleList"}
		for _, s := range t.samples {
			l.rows = append(l.rows, row{name: s.GetUid(), item: s})
		}
		if t.lost > 0 {
			l.warnings = []string{fmt.Sprintf("%d samples are left out: they came faster than they were read", t.lost)}
		}
		return t.printer().list(l)
	}
	if t.seen == 0 && !t.told {
		fmt.Fprintln(t.err, t.silence())
	}
	return nil
}
