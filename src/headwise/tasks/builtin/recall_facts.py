"""The facts of the recall task, by relation: what is asked, and "subject: answer" or "subject: answer/another".

Subjects stand inside the question, never at its start: the bundled model does worse there, perhaps because
much attention goes to the first position whatever stands in it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """Questions that all facts of a relation share."""

    questions: tuple[str, ...]
    facts: tuple[tuple[str, tuple[str, ...]], ...]
    """Subject and its right answers, the expected one first."""


def _relation(questions: tuple[str, ...], text: str) -> Relation:
    split = [fact.strip().split(": ") for fact in text.replace("\n", " ").split(";") if fact.strip()]
    return Relation(questions, tuple((subject, tuple(answers.split("/"))) for subject, answers in split))


RELATIONS: dict[str, Relation] = {
    "capital": _relation(
        ("The capital of {} is", "The capital city of {} is", "The government of {} sits in its capital,"),
        """France: Paris; Germany: Berlin; Italy: Rome; Spain: Madrid; Portugal: Lisbon; Austria: Vienna;
        Hungary: Budapest; Poland: Warsaw; Russia: Moscow; Ukraine: Kiev/Kyiv; Greece: Athens; Turkey: Ankara;
        Egypt: Cairo; Kenya: Nairobi; Nigeria: Abuja; Ghana: Accra; Ethiopia: Addis Ababa; Morocco: Rabat;
        Japan: Tokyo; China: Beijing; India: New Delhi/Delhi; Thailand: Bangkok; Vietnam: Hanoi;
        South Korea: Seoul; Indonesia: Jakarta; Pakistan: Islamabad; Iran: Tehran; Iraq: Baghdad;
        Syria: Damascus; Lebanon: Beirut; Sweden: Stockholm; Norway: Oslo; Denmark: Copenhagen;
        Finland: Helsinki; Iceland: Reykjavik; Ireland: Dublin; England: London; Scotland: Edinburgh;
        Wales: Cardiff; Belgium: Brussels; Canada: Ottawa; Mexico: Mexico City; Cuba: Havana;
        Jamaica: Kingston; Peru: Lima; Chile: Santiago; Argentina: Buenos Aires; Colombia: Bogota/Bogotá;
        Venezuela: Caracas; Ecuador: Quito; Uruguay: Montevideo; Brazil: Brasilia/Brasília;
        Australia: Canberra; New Zealand: Wellington; Bulgaria: Sofia; Romania: Bucharest; Serbia: Belgrade;
        Croatia: Zagreb; Nepal: Kathmandu; Afghanistan: Kabul; Cambodia: Phnom Penh; Taiwan: Taipei;
        Qatar: Doha; Zimbabwe: Harare; Uganda: Kampala; Tunisia: Tunis; Libya: Tripoli; Sudan: Khartoum""",
    ),
    "continent": _relation(
        ("The country of {} is located in", "On a map, {} is found in", "The nation of {} is part of"),
        """France: Europe; Germany: Europe; Italy: Europe; Spain: Europe; Portugal: Europe; Austria: Europe;
        Hungary: Europe; Poland: Europe; Sweden: Europe; Norway: Europe; Finland: Europe; Belgium: Europe;
        Greece: Europe; Ireland: Europe; Kenya: Africa; Nigeria: Africa; Ghana: Africa; Ethiopia: Africa;
        Morocco: Africa; Uganda: Africa; Zimbabwe: Africa; Senegal: Africa; Mali: Africa; Angola: Africa;
        Tanzania: Africa; Algeria: Africa; Japan: Asia; China: Asia; India: Asia; Thailand: Asia; Vietnam: Asia;
        South Korea: Asia; Nepal: Asia; Pakistan: Asia; Mongolia: Asia; Cambodia: Asia; Laos: Asia;
        Canada: North America; Mexico: North America; Peru: South America; Chile: South America;
        Argentina: South America; Colombia: South America; Ecuador: South America; Uruguay: South America;
        Brazil: South America; Bolivia: South America""",
    ),
    "language": _relation(
        ("In {}, most people speak", "The official language of {} is", "Children in {} grow up speaking"),
        """France: French; Germany: German; Italy: Italian; Spain: Spanish; Portugal: Portuguese;
        Austria: German; Hungary: Hungarian; Poland: Polish; Russia: Russian; Greece: Greek; Turkey: Turkish;
        Egypt: Arabic; Iraq: Arabic; Saudi Arabia: Arabic; Syria: Arabic; Japan: Japanese;
        China: Chinese/Mandarin; Thailand: Thai; Vietnam: Vietnamese; South Korea: Korean;
        Indonesia: Indonesian; Iran: Persian/Farsi; Sweden: Swedish; Norway: Norwegian; Denmark: Danish;
        Finland: Finnish; Iceland: Icelandic; England: English; Australia: English; Mexico: Spanish;
        Cuba: Spanish; Chile: Spanish; Argentina: Spanish; Colombia: Spanish; Venezuela: Spanish;
        Brazil: Portuguese; the Netherlands: Dutch; Bulgaria: Bulgarian; Romania: Romanian; Serbia: Serbian;
        Croatia: Croatian; Nepal: Nepali; Bangladesh: Bengali; Ukraine: Ukrainian; the United States: English;
        Israel: Hebrew; Angola: Portuguese; Uruguay: Spanish""",
    ),
    "currency": _relation(
        (
            "The currency of {} is the",
            "The official currency of {} is the",
            "In {}, prices are given in the national currency, the",
        ),
        """Japan: yen; India: rupee; China: yuan/renminbi; Mexico: peso; England: pound; the United States: dollar;
        Russia: ruble; Poland: zloty; Brazil: real; South Korea: won; Thailand: baht; Turkey: lira;
        Sweden: krona; Norway: krone; Denmark: krone; Switzerland: franc; Israel: shekel;
        Vietnam: dong; Germany: euro; France: euro; Italy: euro; Spain: euro; Austria: euro; Greece: euro;
        Finland: euro; Ireland: euro; Portugal: euro; Belgium: euro; South Africa: rand; Nigeria: naira;
        Kenya: shilling; Hungary: forint; Egypt: pound; Canada: dollar; Australia: dollar;
        New Zealand: dollar; Argentina: peso; Chile: peso; Colombia: peso; Pakistan: rupee; Nepal: rupee;
        Malaysia: ringgit; Indonesia: rupiah; Kuwait: dinar; Iraq: dinar; Jordan: dinar; Morocco: dirham;
        Uganda: shilling; Iceland: krona; Scotland: pound""",
    ),
    "opposite": _relation(
        ("The opposite of {} is", "The antonym of {} is", "If it is not {}, then it is"),
        """hot: cold; big: small/little; up: down; left: right; day: night; black: white; good: bad; happy: sad;
        fast: slow; young: old; rich: poor; strong: weak; hard: soft/easy; light: dark/heavy; early: late;
        high: low; long: short; wet: dry; full: empty; open: closed; true: false; right: wrong/left;
        inside: outside; above: below; front: back; first: last; alive: dead; clean: dirty; thick: thin;
        tall: short; wide: narrow; deep: shallow; loud: quiet/soft; cheap: expensive; easy: difficult/hard;
        safe: dangerous; public: private; male: female; positive: negative; north: south; east: west;
        sweet: sour/bitter; smooth: rough; sharp: dull/blunt; tight: loose; near: far; new: old; dark: light;
        cold: hot/warm; slow: fast; weak: strong; dry: wet; late: early; empty: full; false: true;
        guilty: innocent; simple: complex/complicated; internal: external; ancient: modern; major: minor;
        maximum: minimum; increasing: decreasing; winter: summer; beautiful: ugly""",
    ),
    "young": _relation(
        ("A baby {} is called a", "A young {} is known as a", "The baby of a {} is called a"),
        """dog: puppy/pup; cat: kitten; cow: calf; horse: foal/colt; sheep: lamb; goat: kid; pig: piglet;
        chicken: chick; duck: duckling; bear: cub; lion: cub; tiger: cub; wolf: pup/cub; deer: fawn;
        frog: tadpole; kangaroo: joey; goose: gosling; swan: cygnet; seal: pup; elephant: calf; whale: calf;
        dolphin: calf; giraffe: calf; camel: calf; buffalo: calf; leopard: cub; donkey: foal; zebra: foal;
        koala: joey; penguin: chick; hen: chick; toad: tadpole; moose: calf; shark: pup; bat: pup;
        rhino: calf; hippo: calf; panda: cub; cheetah: cub; otter: pup; sparrow: chick; pigeon: chick""",
    ),
    "color": _relation(
        ("The color of {} is", "You can tell by its color: {} is", "Most people think of {} as being"),
        """grass: green; fresh snow: white; coal: black; blood: red; a lemon: yellow; a ripe banana: yellow;
        an emerald: green; a ruby: red; a sapphire: blue; milk: white; a carrot: orange; a pumpkin: orange;
        chocolate: brown; the clear sky: blue; a stop sign: red; a fire truck: red; spinach: green;
        broccoli: green; a polar bear: white; a crow: black; a raven: black; a swan: white; a tomato: red;
        an orange: orange; a cucumber: green; cotton: white; salt: white; sugar: white/brown; soot: black;
        butter: yellow; a sunflower: yellow; lettuce: green; a frog: green; coffee: brown/black;
        a strawberry: red; a flamingo: pink; an eggplant: purple; lavender: purple; ketchup: red;
        mustard: yellow; an egg yolk: yellow/orange; charcoal: black; flour: white; rice: white/brown;
        a school bus: yellow; the ocean: blue; a leaf in spring: green; a violet: purple/blue""",
    ),
    "past": _relation(
        ("The past tense of {} is", "Today I {}. Yesterday I", "Every day they {}, and last week they"),
        """go: went; eat: ate; see: saw; take: took; give: gave; come: came; run: ran; write: wrote; speak: spoke;
        break: broke; choose: chose; drive: drove; begin: began; drink: drank; sing: sang; swim: swam;
        know: knew; grow: grew; throw: threw; fly: flew; fall: fell; forget: forgot; buy: bought;
        bring: brought; think: thought; catch: caught; teach: taught; fight: fought; sleep: slept; keep: kept;
        feel: felt; leave: left; lose: lost; build: built; send: sent; spend: spent; make: made; say: said;
        pay: paid; tell: told; sell: sold; find: found; hold: held; hear: heard; meet: met; sit: sat;
        stand: stood; win: won; wear: wore; steal: stole; hide: hid; ride: rode; wake: woke; draw: drew;
        walk: walked; talk: talked; play: played; work: worked; cook: cooked; dance: danced""",
    ),
    "plural": _relation(
        ("The plural of {} is", "The plural form of the word {} is", "Not just one {}, but several"),
        """child: children; man: men; woman: women; foot: feet; tooth: teeth; goose: geese; mouse: mice;
        person: people/persons; leaf: leaves; knife: knives; wife: wives; life: lives; wolf: wolves;
        shelf: shelves; half: halves; calf: calves; loaf: loaves; thief: thieves; city: cities; baby: babies;
        story: stories; party: parties; lady: ladies; box: boxes; bus: buses; church: churches; dish: dishes;
        watch: watches; tomato: tomatoes; potato: potatoes; hero: heroes; country: countries; family: families;
        dog: dogs; cat: cats; book: books; tree: trees; car: cars; house: houses; class: classes; fox: foxes;
        enemy: enemies; butterfly: butterflies; crisis: crises; analysis: analyses""",
    ),
    "next": _relation(
        ("In order, after {} comes", "It was {} first, and then it was", "First comes {}, and then comes"),
        """January: February; February: March; March: April; April: May; May: June; June: July; July: August;
        August: September; September: October; October: November; November: December; Monday: Tuesday;
        Tuesday: Wednesday; Wednesday: Thursday; Thursday: Friday; Friday: Saturday; Saturday: Sunday;
        Sunday: Monday; one: two; two: three; three: four; four: five; five: six; six: seven; seven: eight;
        eight: nine; nine: ten; ten: eleven; eleven: twelve; first: second; second: third; third: fourth;
        fourth: fifth; fifth: sixth; spring: summer; summer: autumn/fall; autumn: winter; winter: spring;
        breakfast: lunch""",
    ),
    "symbol": _relation(
        (
            "The chemical symbol for {} is",
            "In chemistry, the symbol for {} is",
            "On the periodic table, {} is written as",
        ),
        """gold: Au; silver: Ag; iron: Fe; copper: Cu; lead: Pb; tin: Sn; sodium: Na; potassium: K; oxygen: O;
        hydrogen: H; nitrogen: N; carbon: C; helium: He; lithium: Li; calcium: Ca; magnesium: Mg; zinc: Zn;
        mercury: Hg; chlorine: Cl; fluorine: F; sulfur: S; phosphorus: P; iodine: I; neon: Ne; nickel: Ni;
        aluminum: Al; silicon: Si; uranium: U; platinum: Pt; titanium: Ti; cobalt: Co; argon: Ar; boron: B""",
    ),
}
