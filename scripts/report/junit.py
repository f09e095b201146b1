# SPDX-License-Identifier: Apache-2.0
"""A suite as JUnit XML, for what shows tests: a test of how each case ended, one of what its certificate says, one of its rounds where
it has several, one a reference, one a claim."""

import re
from xml.etree import ElementTree

import cards
import suite_facts

# What XML 1.0 cannot hold.
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(value):
    return FORBIDDEN.sub("?", str(value))


def _test(suite, area, name, seconds=None):
    test = ElementTree.SubElement(suite, "testcase", classname=clean(f"{suite.get('name')}.{area}"), name=clean(name))
    test.set("time", f"{seconds or 0:.6g}")
    return test


def _end(test, kind, what, why):
    ElementTree.SubElement(test, kind, message=clean(f"{what}: {why}" if why else what)).text = clean(why) or None


def _add_case(suite, case):
    """`failed` fails, as it does in `kuafu suite`; refused, out of memory and out of time are results, told as skipped."""
    test = _test(suite, "run", case.name, case.wall_s)
    if case.status != "ok":
        _end(test, "failure" if case.status == "failed" else "skipped", case.status.replace("_", " "), case.reason)
        if case.is_different:           # a run that has diverged is held to the reference too
            _end(_test(suite, "certificate", case.name), "failure", "different", cards.certificate_text(case))
        return
    test = _test(suite, "certificate", case.name)
    if case.is_different:
        _end(test, "failure", "different", cards.certificate_text(case))
    elif case.is_estimated:
        _end(test, "skipped", "estimated by the cost model", "")
    elif not case.is_certified:
        _end(test, "skipped", "certificate not run", case.certificate.get("reason") or "")
    if len(case.rounds) > 1 or case.round_problems:
        test = _test(suite, "rounds", case.name)
        if case.round_problems:
            is_bad = any(fails for _, fails in case.round_problems)
            _end(test, "failure" if is_bad else "skipped", f"{len(case.round_problems)} in rounds after the first",
                 "\n".join(sentence for sentence, _ in case.round_problems))


def _add_reference(suite, reference):
    test = _test(suite, "reference", reference.what)
    if reference.broken:
        _end(test, "failure", f"broken by {len(reference.broken)} of {reference.checked} cases", "\n".join(reference.broken))
    elif not reference.checked:
        _end(test, "skipped", "no finished case is what it is about", "")


def _add_claim(suite, claim):
    """A claim that fails is a result, told as skipped: `kuafu suite` exits with 0."""
    test = _test(suite, "claim", claim.name)
    if claim.verdict != "holds":
        _end(test, "skipped", f"claim {claim.shown_verdict}: {claim.what} ({claim.source})", "\n".join(claim.sentences))


def xml(runs, labels):
    """The document: a test suite a folder."""
    root = ElementTree.Element("testsuites", name="kuafu")
    for run, label in zip(runs, labels):
        suite = ElementTree.SubElement(root, "testsuite", name=clean(run.name if len(runs) == 1 else label))
        for key, name in (("timestamp", "time"), ("hostname", "host")):
            if run.provenance.get(name):
                suite.set(key, clean(run.provenance[name]).removesuffix("Z"))
        for case in run.cases:
            _add_case(suite, case)
        for reference in run.references:
            _add_reference(suite, reference)
        if suite_facts.UNKNOWN in run.notes:
            _end(_test(suite, "reference", "references of the suite"), "skipped", "not known", suite_facts.UNKNOWN)
        for claim in run.claims:
            _add_claim(suite, claim)
        suite.set("tests", str(len(suite)))
        suite.set("errors", "0")
        for key, kind in (("failures", "failure"), ("skipped", "skipped")):
            suite.set(key, str(len(suite.findall(f"testcase/{kind}"))))
        suite.set("time", f"{sum(c.wall_s or 0 for c in run.cases):.6g}")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
