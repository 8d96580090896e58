"""Who holds which page: requests, their lengths, and pages shared by reference count. No tensor is known here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...errors import HeadscopeError


class OutOfPages(HeadscopeError):
    """A cache has too few free pages for what was asked; it is as it was before."""


@dataclass
class _Request:
    length: int = 0
    pages: list[int] = field(default_factory=list)


class Ledger:
    """Pages and the requests that hold them.

    A request holds pages in the order of its tokens, perhaps some in reserve. Requests that share a prefix share its
    pages. A page that is shared and only partly filled is copied before anyone writes behind it.

    Parameters
    ----------
    n_pages
        How many pages there are.
    page_size
        Tokens on a page.
    """

    def __init__(self, n_pages: int, page_size: int) -> None:
        for name, value in (("n_pages", n_pages), ("page_size", page_size)):
            if value < 1:
                raise ValueError(f"{name} should be >= 1 but got {value}")
        self.n_pages = n_pages
        self.page_size = page_size
        self._holders = [0] * n_pages
        self._requests: dict[int, _Request] = {}
        self._next = 0

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def free_pages(self) -> int:
        """Pages that nobody holds."""
        return self._holders.count(0)

    @property
    def requests(self) -> tuple[int, ...]:
        """Requests that live."""
        return tuple(self._requests)

    def length(self, request: int) -> int:
        """Return a request's number of tokens."""
        return self._get(request).length

    def pages(self, request: int) -> list[int]:
        """Return the pages of a request's tokens, in order (none of its reserve)."""
        found = self._get(request)
        return found.pages[: self._count(found.length)]

    def _get(self, request: int) -> _Request:
        if request not in self._requests:
            raise KeyError(f"request {request} does not live: the living ones are {sorted(self._requests)}")
        return self._requests[request]

    def _count(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    # -- changing -----------------------------------------------------------------------------------------------------

    def add(self, reserve: int = 0) -> int:
        """Return a new request without tokens, with pages for `reserve` of them.

        Raises
        ------
        OutOfPages
            If fewer pages are free.
        """
        if reserve < 0:
            raise ValueError(f"reserve should be >= 0 but got {reserve}")
        pages = self._take(self._count(reserve), after=None)
        return self._enter(_Request(0, pages))

    def fork(self, request: int) -> int:
        """Return a new request with the same tokens, on the same pages."""
        pages = self.pages(request)
        for page in pages:
            self._holders[page] += 1
        return self._enter(_Request(self.length(request), pages))

    def free(self, request: int) -> None:
        """Forget a request; pages that nobody else holds become free."""
        for page in self._get(request).pages:
            self._holders[page] -= 1
        del self._requests[request]

    def extend(self, counts: Mapping[int, int]) -> list[tuple[int, int]]:
        """Make room for further tokens of some requests, all or nothing.

        Returns
        -------
        list of (page, page)
            Copies to make before anything is written: from a shared, partly filled page to one of the request's own.

        Raises
        ------
        OutOfPages
            If fewer pages are free than that takes; nothing has changed then.
        KeyError
            If a request does not live.
        """
        if any(count < 0 for count in counts.values()):
            raise ValueError(f"a request cannot grow by less than no tokens: {dict(counts)}")
        growing = {request: count for request, count in counts.items() if self._get(request) is not None and count}
        needed = self._needed(growing)
        if needed > self.free_pages:
            raise OutOfPages(
                f"{needed} pages are needed and {self.free_pages} of {self.n_pages} are free: "
                "free requests, or make the cache larger"
            )
        copies = []
        for request, count in growing.items():
            found = self._requests[request]
            partly = found.length // self.page_size
            if found.length % self.page_size and self._holders[found.pages[partly]] > 1:
                (own,) = self._take(1, after=None)
                copies.append((found.pages[partly], own))
                self._holders[found.pages[partly]] -= 1
                found.pages[partly] = own
            more = self._count(found.length + count) - len(found.pages)
            found.pages += self._take(max(more, 0), after=found.pages[-1] if found.pages else None)
            found.length += count
        return copies

    def shorten(self, request: int, length: int) -> None:
        """Forget a request's tokens from `length` on; pages without tokens become free."""
        found = self._get(request)
        if not 0 <= length <= found.length:
            raise ValueError(f"request {request} has {found.length} tokens and cannot be shortened to {length}")
        for page in found.pages[self._count(length) :]:
            self._holders[page] -= 1
        del found.pages[self._count(length) :]
        found.length = length

    def _needed(self, growing: Mapping[int, int]) -> int:
        """Return how many pages an extension takes: new ones and copies."""
        needed, leaving = 0, {}
        for request, count in growing.items():
            found = self._requests[request]
            needed += max(self._count(found.length + count) - len(found.pages), 0)
            if found.length % self.page_size:
                page = found.pages[found.length // self.page_size]
                if self._holders[page] - leaving.get(page, 0) > 1:
                    leaving[page] = leaving.get(page, 0) + 1
                    needed += 1
        return needed

    def _enter(self, request: _Request) -> int:
        self._next += 1
        self._requests[self._next - 1] = request
        return self._next - 1

    def _take(self, count: int, after: int | None) -> list[int]:
        """Take `count` free pages, if possible in one run: right behind page `after`, or else the first that fits."""
        if count > self.free_pages:
            raise OutOfPages(f"{count} pages are needed and {self.free_pages} of {self.n_pages} are free")
        starts = [] if after is None else [after + 1]
        for start in (*starts, *range(self.n_pages)):
            run = range(start, start + count)
            if run.stop <= self.n_pages and not any(self._holders[page] for page in run):
                taken = list(run)
                break
        else:
            taken = [page for page, holders in enumerate(self._holders) if not holders][:count]
        for page in taken:
            self._holders[page] = 1
        return taken
