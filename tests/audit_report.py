"""The report of pip-audit in words; the exit status is 0 if packages were audited and none is vulnerable."""

import json
import sys
from pathlib import Path

path = Path(sys.argv[1])
packages = json.loads(path.read_text())["dependencies"] if path.is_file() else []
audited = [package for package in packages if "skip_reason" not in package]
found = [(package, each) for package in audited for each in package["vulns"]]
for package, each in found:
    fixed = ", ".join(each["fix_versions"]) or "no release"
    sys.stdout.write(f"{package['name']} {package['version']}: {each['id']}, fixed in {fixed}\n")
sys.stdout.write(f"{len(audited)} of {len(packages)} packages audited, {len(found)} known vulnerabilities\n")
if not audited:
    sys.stdout.write("the advisory service could not be reached: nothing was audited\n")
sys.exit(bool(found) or not audited)
