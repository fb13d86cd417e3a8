"""The addresses clients are given to connect to, seen from here as a client would."""

from typing import Final

from forebay.commands.doctor.answers import NoAnswer, Respondent
from forebay.commands.doctor.finding import Finding, failed, ok, skipped, warning
from forebay.commands.doctor.metadata import Cluster
from forebay.commands.doctor.ports import is_ours
from process.settings.notation import Listener, is_loopback

FIX: Final = "Set kafka.advertised_listeners to an address that clients can reach"
NAME_UNKNOWN: Final = "name does not resolve"


def of_address(
    bound: Listener, advertised: Listener, answer: Respondent | NoAnswer | None, cluster: Cluster, *, is_served: bool
) -> Finding:
    """`answer`: what is at the advertised address, None if it was not asked; `is_served`: a broker on these settings runs."""
    check = f"advertised: {advertised.name}"
    where = f"{advertised}"
    misleads = is_loopback(advertised.host) and not is_loopback(bound.host)
    if misleads:
        return warning(
            check,
            f"{where} leads clients to their own machine, while {bound} is for other machines, too. {FIX}, "
            "unless all clients are on this machine or a port is forwarded to it.",
        )
    match answer:
        case None:
            return skipped(check, f"the port of {where} is not known before the broker listens")
        case Respondent() if is_ours(answer, cluster):
            return ok(check, f"{where} is answered by {answer}")
        case Respondent() if not cluster.is_known:
            return ok(check, f"{where} is answered by {answer}; whether that is the cluster of these settings is not known")
        case Respondent():
            return failed(check, f"{where} is answered by {answer}, which is another cluster. {FIX}.")
        case NoAnswer(cause, is_closed=True) if cause == NAME_UNKNOWN:
            return warning(check, f"{where} does not resolve from here. {FIX}, or let its name be resolved where clients are.")
        case NoAnswer(cause, is_closed=True) if not is_served:
            return skipped(check, f"no broker listens now: {where}: {cause}")
        case NoAnswer(cause):
            return warning(check, f"{where} cannot be used from here: {cause}. {FIX}, if clients cannot use it either.")
