"""What the key or token of a request, and the model, allow."""

from fastapi import Request
from starlette.exceptions import HTTPException


def may_enroll(request: Request) -> bool:
    return bool(request.state.permission == "enroll") and not request.app.state.read_only


def require_enroll(request: Request) -> None:
    if request.app.state.read_only:
        raise HTTPException(403, "The model folder is read-only: this service can neither enroll nor forget classes.")
    if not may_enroll(request):
        raise HTTPException(403, "This is a read key: it allows neither enrollment nor forgetting.")
