"""The words of the syntax task: common ones, so that most tokenizers have each as one token."""

from __future__ import annotations


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Each word of the text is two, with a stroke between them."""
    split = [word.split("/") for word in text.split()]
    return tuple((one, other) for one, other in split)


PEOPLE = _pairs(
    "boy/boys girl/girls man/men woman/women child/children teacher/teachers student/students doctor/doctors "
    "farmer/farmers lawyer/lawyers artist/artists writer/writers singer/singers driver/drivers "
    "soldier/soldiers nurse/nurses actor/actors worker/workers manager/managers guard/guards friend/friends "
    "player/players dancer/dancers pilot/pilots guest/guests visitor/visitors customer/customers"
)
"""Singular and plural."""

THINGS = _pairs(
    "key/keys book/books table/tables picture/pictures letter/letters door/doors car/cars house/houses "
    "road/roads box/boxes lamp/lamps bridge/bridges garden/gardens river/rivers tree/trees chair/chairs "
    "window/windows ship/ships train/trains shop/shops wall/walls school/schools"
)

MALE_FEMALE = _pairs(
    "boy/girl man/woman king/queen brother/sister father/mother uncle/aunt son/daughter husband/wife "
    "prince/princess grandfather/grandmother"
)
MALE_FEMALE_NAMES = _pairs(
    "John/Mary James/Anna Robert/Susan Michael/Sarah David/Emma Peter/Laura Paul/Alice"
)

MALE = _pairs(
    "boy/boys man/men king/kings brother/brothers father/fathers uncle/uncles son/sons prince/princes"
)
FEMALE = _pairs(
    "girl/girls woman/women queen/queens sister/sisters mother/mothers aunt/aunts daughter/daughters"
)

REFLEXIVE_VERBS = (
    "hurt saw blamed taught washed dressed introduced protected described defended prepared".split()
)

VERBS = _pairs("likes/like knows/know sees/see helps/help follows/follow admires/admire remembers/remember")
"""What one does to another: third person singular and plural."""

AUXILIARIES = _pairs("is/are was/were has/have")

IRREGULAR = _pairs(
    "wrote/written ate/eaten took/taken gave/given saw/seen went/gone broke/broken spoke/spoken chose/chosen "
    "stole/stolen wore/worn drove/driven began/begun drank/drunk knew/known grew/grown threw/thrown drew/drawn "
    "flew/flown fell/fallen forgot/forgotten"
)
"""Past tense and participle, where they differ."""

FORMS = _pairs(
    "swim/swimming run/running read/reading sing/singing dance/dancing cook/cooking write/writing "
    "sleep/sleeping walk/walking play/playing wait/waiting talk/talking work/working eat/eating"
)

ADJECTIVES = "old new small large beautiful strange heavy famous little expensive".split()
LONG_ADJECTIVES = "careful patient famous popular polite helpful honest nervous curious serious".split()
COUNTED = "books chairs letters pictures tickets trees cars questions friends apples".split()
MASS = "water money rice milk sugar sand bread help furniture information".split()

PREPOSITIONS = ("near", "behind", "beside", "next to", "in front of", "across from")
PLACES = "room school village office kitchen garden library hospital station market".split()
OPENINGS = (
    "In the evening",
    "At the end of the day",
    "To be honest",
    "As far as we know",
    "According to the report",
    "In this story",
    "From time to time",
    "In the first chapter",
)
