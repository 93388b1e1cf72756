// Command sightline is the whole product in one binary: the control plane, the
// development modes, and the commands of those who operate it.
package main

import (
	"os"

	"github.com/sightlinedev/sightline/cmd/sightline/internal/cli"
)

// version is set when the binary is linked (see the Makefile).
var version = "dev"

func main() { os.Exit(cli.Main(version, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
