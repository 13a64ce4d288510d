"""Opposites, and what many of a kind are called."""

from __future__ import annotations

from headwise.tasks.builtin.commonsense_relation import Relation, relation

WORDS: dict[str, Relation] = {
    "opposite": relation(
        "word",
        (
            "What is the opposite of {}? It is",
            "It was not {} at all; on the contrary, it was",
            "Two words that are opposites are {} and",
            "If you say the opposite of {}, you say",
            "What is the opposite of {}?",
        ),
        """
        cold ~ cool: hot
        cool ~ cold: warm
        hot: cold; freezing
        small ~ short ~ thin ~ low: big; huge; large
        big: small; tiny; little
        slow ~ late: fast; quick; rapid
        fast: slow
        old: young; new; modern
        new ~ modern: old; ancient
        poor: rich; wealthy
        rich: poor
        weak: strong; powerful
        strong: weak
        sad ~ dull: happy; cheerful
        happy: sad; miserable
        dry: wet; damp
        wet: dry
        empty: full
        full: empty
        closed: open
        open: closed; shut; locked
        dirty: clean; spotless
        clean: dirty; filthy
        quiet ~ soft: loud; noisy
        loud: quiet; silent
        expensive: cheap
        cheap: expensive; costly
        dangerous: safe; harmless
        safe: dangerous; risky
        dark ~ dull: bright; light
        bright ~ light: dark; dim
        light ~ easy: heavy
        soft ~ easy: hard
        rough: smooth
        smooth ~ soft ~ straight: rough; bumpy
        low ~ short ~ small: high
        high: low
        short ~ small ~ low: long; tall
        narrow ~ thin: wide; broad
        wide: narrow
        shallow: deep
        deep: shallow
        late: early
        early: late
        false ~ wrong: true
        true ~ right ~ straight: false; untrue
        wrong ~ false: right; correct
        right ~ true ~ straight: wrong; incorrect; mistaken
        difficult ~ rough: easy; simple
        easy: difficult
        ugly: beautiful; pretty
        beautiful: ugly; hideous
        dull ~ smooth ~ soft: sharp; exciting
        interesting ~ bright ~ new: boring; dull
        crooked: straight
        straight: crooked; bent
        thin ~ small ~ narrow: thick; fat
        thick: thin
        loose: tight
        tight: loose
        stale ~ old: fresh
        artificial: natural
        modern ~ new: old-fashioned
        common: rare; unusual
        rare: common
        polite: rude; impolite
        cruel: kind; merciful
        """,
    ),
    "reversal": relation(
        "word",
        (
            "Some people {}, and others do the opposite: they",
            "The opposite of to {} is to",
            "If I want to {} and you want the opposite, you want to",
            "Which verb means the opposite of {}?",
        ),
        """
        close: open
        open: close; shut
        sell: buy
        buy: sell
        cry: laugh
        laugh: cry; weep
        pull: push
        push: pull
        finish: start; begin
        start: finish; stop
        lose: win; find
        win: lose
        forget: remember
        remember: forget
        leave: arrive; stay
        take ~ save: give
        answer: ask
        stand up: sit down
        wake up: fall asleep
        destroy: build; create
        hate: love; adore
        love: hate; despise
        sink: float
        melt: freeze
        defend: attack
        whisper: shout; yell
        save: spend; waste
        work ~ wake up ~ stand up ~ start: rest; relax
        fail ~ lose: succeed; pass
        reject: accept
        """,
    ),
    "group": relation(
        "word",
        (
            "Many {} together are called",
            "When there are a lot of {} together, we speak of",
            "If you see {} together, you see",
            "What do you call a group of {}?",
        ),
        """
        a pack ~ a team: wolves; hunting dogs
        a flock ~ a herd: sheep; birds; wild geese; pigeons
        a swarm: bees; locusts; mosquitoes; wasps
        a school: fish; herrings; sardines
        a herd ~ a pack: cows; elephants; buffaloes; antelopes
        a pride: lions
        an army ~ a crew ~ a team: soldiers; armed men in uniform
        a team: soccer players; baseball players
        a choir ~ a team ~ a class: singers; people who sing in church
        a crew ~ a team: sailors; people who work on a ship
        an orchestra ~ a team: violinists, trumpeters and drummers
        a deck: playing cards
        a bouquet: roses; cut flowers
        a forest: trees; oaks and pines
        a mountain range: mountains; high peaks
        a class ~ a school ~ a team: students; pupils of one teacher
        a fleet: ships; warships
        a litter ~ a pack: puppies; kittens; newborn piglets
        a galaxy: stars
        """,
    ),
}
