package status_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/server/status"
)

// TestTable: each row is whole, and numbers and reasons are given once.
func TestTable(t *testing.T) {
	reason := regexp.MustCompile(`^[A-Z][A-Z0-9_]{1,62}$`)
	seen := map[string]status.Code{}
	last := status.Code(0)
	for _, e := range status.Table() {
		switch {
		case e.Code <= last:
			t.Errorf("%v comes after %v", e.Code, last)
		case e.Code < 1000 || e.Code > 7999:
			t.Errorf("%v is of no area", e.Code)
		case !reason.MatchString(e.Reason):
			t.Errorf("%v: reason %q", e.Code, e.Reason)
		case e.Title == "" || e.Cause == "" || e.Fix == "" || e.Since == "":
			t.Errorf("%v lacks a text: %+v", e.Code, e)
		case strings.HasSuffix(e.Fix, ".") || strings.ContainsAny(e.Fix+e.Title+e.Cause, "\n"):
			t.Errorf("%v: texts are parts of a sentence: %q", e.Code, e.Fix)
		}
		if other, dup := seen[e.Reason]; dup {
			t.Errorf("%v and %v share the reason %s", e.Code, other, e.Reason)
		}
		seen[e.Reason], last = e.Code, e.Code
		if got, err := status.ParseCode(e.Code.String()); err != nil || got != e.Code {
			t.Errorf("%v is read back as %v, %v", e.Code, got, err)
		}
	}
	for _, bad := range []string{"", "SL", "2003", "SL20030", "SL200", "SLxxxx", "XX2003"} {
		if c, err := status.ParseCode(bad); err == nil {
			t.Errorf("%q was read as %v", bad, c)
		}
	}
}

// TestEveryCodeUsedHasARow: the constants, and every SL number that is written
// anywhere in the tree.
func TestEveryCodeUsedHasARow(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "code.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	constants := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); !ok || id.Name != "Code" {
			return true
		}
		constants++
		c, err := status.ParseCode("SL" + spec.Values[0].(*ast.BasicLit).Value)
		if _, ok := status.Lookup(c); err != nil || !ok {
			t.Errorf("%s has no row", spec.Names[0].Name)
		}
		return true
	})
	if want := len(status.Table()); constants != want {
		t.Errorf("%d constants, %d rows", constants, want)
	}
	problems, err := os.ReadFile("../../registry/manifest/problem.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`Code = (1[0-9]{3})\b`).FindAllStringSubmatch(string(problems), -1) {
		c, _ := status.ParseCode("SL" + m[1])
		if _, ok := status.Lookup(c); !ok {
			t.Errorf("registry/manifest has %v, which has no row", c)
		}
	}
	number := regexp.MustCompile(`\bSL[1-7][0-9]{3}\b`)
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2:
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".md"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, s := range number.FindAllString(string(text), -1) {
			c, _ := status.ParseCode(s)
			if _, ok := status.Lookup(c); !ok {
				t.Errorf("%s speaks of %s, which has no row", path, s)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestStatusesCarryOneErrorInfo: what each constructor puts on the wire.
func TestStatusesCarryOneErrorInfo(t *testing.T) {
	for name, row := range map[string]struct {
		err     error
		code    status.Code
		grpc    codes.Code
		details int
		text    string
	}{
		"plain":        {status.Errorf(status.ViewsLoading, "%d of %d views are built", 3, 9), status.ViewsLoading, codes.Unavailable, 1, "3 of 9 views are built; keep what you hold"},
		"field":        {status.Field(status.InvalidField, "spec.ports[0].name", "dns-label", `"Foo" has an upper-case letter`), status.InvalidField, codes.InvalidArgument, 2, `spec.ports[0].name: "Foo" has an upper-case letter (rule: dns-label); correct the named field`},
		"precondition": {status.Precondition(status.GuardRefused, "guard", "shop/cart", "2 of 5 would serve, the floor is 50 %"), status.GuardRefused, codes.FailedPrecondition, 2, "shop/cart: 2 of 5 would serve"},
		"limit":        {status.Limit("XDS.Names", "5000 names"), status.LimitExceeded, codes.ResourceExhausted, 1, "over the limit XDS.Names of 5000 names"},
		"hidden":       {status.Hidden("service", "shop/cart"), status.NotFound, codes.NotFound, 1, `service "shop/cart": not found`},
		"retry":        {status.New(status.Stopping, "bye").RetryAfter(time.Second).Err(), status.Stopping, codes.Unavailable, 2, "bye"},
		"never sent":   {status.Errorf(status.PortTaken, "x"), status.Internal, codes.Internal, 1, "x"},
		"no row":       {status.Errorf(status.Code(1), "x"), status.Internal, codes.Internal, 1, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			wrapped := fmt.Errorf("call: %w", row.err)
			if got, ok := status.CodeOf(wrapped); !ok || got != row.code {
				t.Errorf("code %v, %v", got, ok)
			}
			st := grpcstatus.Convert(row.err)
			if st.Code() != row.grpc || len(st.Details()) != row.details {
				t.Errorf("%v with %d details: %v", st.Code(), len(st.Details()), st)
			}
			if !strings.HasPrefix(st.Message(), row.text) || !strings.HasSuffix(st.Message(), "["+row.code.String()+"]") {
				t.Errorf("message %q", st.Message())
			}
			infos := 0
			for _, d := range st.Details() {
				if ei, ok := d.(*errdetails.ErrorInfo); ok {
					infos++
					e, _ := status.Lookup(row.code)
					if ei.Domain != status.Domain || ei.Reason != e.Reason || ei.Metadata["code"] != row.code.String() {
						t.Errorf("ErrorInfo %v", ei)
					}
				}
			}
			if infos != 1 {
				t.Errorf("%d ErrorInfos", infos)
			}
		})
	}
	if _, ok := status.CodeOf(grpcstatus.Error(codes.NotFound, "of somebody else")); ok {
		t.Error("a status of somebody else has a code of ours")
	}
	if _, ok := status.CodeOf(nil); ok {
		t.Error("no error has a code")
	}
}

// TestFieldViolation: the path, the rule as a reason, and the words.
func TestFieldViolation(t *testing.T) {
	err := status.Field(status.InvalidField, "name", "DNS label, at most 63", "too long")
	for _, d := range grpcstatus.Convert(err).Details() {
		if br, ok := d.(*errdetails.BadRequest); ok {
			v := br.FieldViolations[0]
			if v.Field != "name" || v.Reason != "DNS_LABEL__AT_MOST_63" || v.Description != "too long" {
				t.Errorf("%v", v)
			}
			return
		}
	}
	t.Error("no BadRequest")
}

// TestHiddenIsAlike: missing and forbidden are one answer, of one size for
// names of one length.
func TestHiddenIsAlike(t *testing.T) {
	a, b := status.Hidden("service", "shop/cart"), status.Hidden("service", "shop/none")
	if grpcstatus.Code(a) != grpcstatus.Code(b) || len(a.Error()) != len(b.Error()) {
		t.Errorf("%v and %v", a, b)
	}
}

// TestTextThatIsNotUTF8 still makes a status with the right code.
func TestTextThatIsNotUTF8(t *testing.T) {
	err := status.Field(status.InvalidField, "name", "utf8", "\xff\xfe")
	if grpcstatus.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}
