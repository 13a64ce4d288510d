"""What people do and say, why they do it, what happens when, and what their bodies are for."""

from __future__ import annotations

from headwise.tasks.builtin.commonsense_relation import Relation, relation

PEOPLE: dict[str, Relation] = {
    "job": relation(
        "social",
        (
            "A person who {} is called",
            "Somebody who {} for a living is",
            "At work, my cousin {}. My cousin is",
            "In the story there is somebody who {}:",
            "What do you call a person who {}?",
        ),
        """
        a baker ~ a chef: bakes bread; makes rolls and cakes before dawn
        a barber: cuts men's hair; trims beards
        a plumber: fixes leaking pipes; unclogs drains; installs faucets
        an electrician: puts electric wires into houses; repairs light switches
        a carpenter: builds things out of wood; makes wooden tables and chairs
        a pilot: flies airplanes; lands jets on runways
        a teacher: teaches children at school; grades homework; gives math lessons
        a dentist ~ a surgeon: fills cavities; pulls teeth
        a surgeon: operates on patients; performs heart operations
        a veterinarian: treats sick animals; vaccinates dogs and cats
        a farmer: grows wheat; raises cows and pigs; plows fields
        a fisherman ~ a sailor: catches herring at sea; hauls in nets full of cod
        a sailor ~ a fisherman: serves on a ship at sea; hoists the sails
        a chef: runs a restaurant kitchen; creates fine dishes for a restaurant
        a waiter: serves meals in a restaurant; brings the menu to the guests
        a butcher ~ a chef: sells meat; cuts up beef and pork
        a tailor: sews suits; shortens trousers
        a shoemaker: makes shoes; mends boots
        a florist ~ a gardener: sells flowers; arranges bouquets
        a gardener ~ a farmer: takes care of flower beds; trims hedges
        a librarian: lends out books; puts returned books back on the shelves
        a journalist ~ a novelist: writes for a newspaper; reports the news
        a novelist ~ a poet ~ a journalist: writes novels; makes up long stories for books
        a poet ~ a novelist: writes poems; composes sonnets
        a sculptor: carves statues; makes busts out of marble
        a photographer ~ a journalist: takes portraits with a camera; photographs weddings
        a singer ~ an actor: sings songs on stage; performs the vocals in a band
        an actor: plays roles in films; performs in plays
        a pianist ~ a composer: plays the piano; gives piano concerts
        a drummer: plays the drums; beats the drums in a band
        a composer ~ a conductor ~ a pianist: writes symphonies
        a conductor ~ a composer: leads an orchestra
        a judge: sentences criminals in court; presides over a trial
        a lawyer: defends clients in court; writes contracts and argues cases
        a police officer ~ a detective: arrests criminals; gives speeding tickets
        a firefighter: puts out fires; rescues people from burning buildings
        a soldier: fights in an army; marches with a rifle into battle
        an astronaut ~ a pilot: travels into space; works aboard a space station
        an astronomer: studies the stars; discovers new planets through a telescope
        a geologist: studies rocks; examines layers of stone
        a historian ~ a novelist ~ a journalist: writes about the past; studies wars of long ago
        a meteorologist: forecasts the weather; predicts storms
        a mathematician: proves theorems; works on difficult equations
        an archaeologist ~ a historian: digs up ancient ruins; excavates old tombs
        an architect: designs houses; draws plans for new buildings
        a mechanic: repairs cars; changes the oil in cars
        a bricklayer: builds walls out of bricks
        a miner: digs coal out of the earth; works deep in a coal mine
        a lumberjack: cuts down trees for timber
        a taxi driver ~ a bus driver: drives passengers around town for a fare
        a mail carrier: delivers letters; brings the mail to every house
        a cashier: rings up groceries at the checkout
        an accountant: keeps a company's books; prepares tax returns
        a translator: turns French novels into English
        a detective ~ a police officer: looks for clues and solves murders
        a spy: secretly gathers information for a government
        a magician: pulls rabbits out of hats; does card tricks on stage
        a clown: wears a red nose and makes children laugh
        a lifeguard: keeps swimmers safe at the beach
        a coach ~ a teacher: trains a football team
        a referee: makes sure that players obey the rules
        a priest: leads church services; baptizes babies
        a jockey: rides race horses
        a shepherd ~ a farmer: looks after sheep; leads a flock to pasture
        a beekeeper ~ a farmer: keeps bees; collects honey from hives
        a blacksmith: makes horseshoes; hammers red-hot iron into shape
        a potter: makes clay pots
        a weaver: makes cloth on a loom
        a locksmith: opens locked doors and copies keys
        a jeweler: makes gold rings; sets diamonds in rings
        an optician: fits people with glasses
        a pharmacist: fills prescriptions; prepares medicines
        a zookeeper ~ a veterinarian: feeds the lions at the zoo
        a flight attendant ~ a waiter: serves drinks on planes
        a bus driver ~ a taxi driver: drives a city bus
        a janitor: sweeps the halls of a school
        a babysitter: looks after other people's children for an evening
        a thief: steals things; picks pockets
        """,
    ),
    "saying": relation(
        "social",
        (
            "When {}, you say",
            "When {}, the best thing to say is",
            "When {}, a polite person says",
            "What do you say when {}?",
        ),
        """
        thank you: someone holds the door for you; someone gives you a gift; someone lends you a pen
        thank you: a stranger carries your bags; someone passes you the salt; someone pays you a compliment
        I am sorry ~ thank you ~ good morning: you spill coffee on somebody; you break a friend's cup
        I am sorry ~ thank you ~ good morning: you have kept a friend waiting
        I am sorry ~ good morning: you bump into somebody; you have hurt somebody's feelings
        happy birthday ~ congratulations: a friend turns thirty; your sister turns ten
        good night ~ goodbye: you are about to go to bed; you tuck a child in
        good morning: you come down to breakfast; you have just woken up; you greet your neighbor at eight o'clock
        goodbye ~ good night ~ have a good trip ~ good luck: you hang up the phone; you leave the office
        goodbye ~ good night ~ have a good trip ~ good luck: you part from a friend
        bless you: someone sneezes; a person next to you sneezes loudly
        congratulations: a friend gets engaged; a friend has passed an exam; a colleague is promoted
        congratulations: a couple has had a baby; a friend has won first prize
        get well soon ~ I am sorry: a friend is in the hospital; a classmate has the flu; a friend is ill
        good luck ~ goodbye ~ have a good trip: a friend is about to take an exam; a friend goes to a job interview
        good luck ~ goodbye ~ have a good trip: a friend starts in a race
        merry Christmas: it is December 25; the family meets around the Christmas tree
        happy new year: it is the first of January; the clock strikes twelve on December 31
        have a good trip ~ goodbye ~ good luck: a friend leaves on a long journey; your parents set off on vacation
        enjoy your meal: your guests pick up their forks; you put dinner in front of a guest
        nice to meet you ~ good morning: you are introduced to a stranger
        nice to meet you ~ good morning: you meet your friend's wife for the first time
        """,
    ),
    "result": relation(
        "causal",
        (
            "When {},",
            "You can be sure that when {},",
            "Everybody knows that if {},",
            "What happens when {}?",
        ),
        """
        it breaks ~ it bursts: a glass falls on a stone floor; an egg is dropped; a plate is thrown against a wall
        it breaks ~ it bursts: a mirror is hit with a hammer; a thin branch is bent too far
        it melts: ice is warmed; snow lies in the sun; butter is put in a warm pan; chocolate is left in a hot car
        it melts ~ it burns: wax is held near a flame
        it freezes: water is cooled far below zero; a puddle lies outside on an icy night; juice is kept in the freezer
        it boils ~ it burns ~ it rises: water is heated to a hundred degrees; soup stays on a hot stove
        it boils ~ it burns ~ it rises: milk is heated for too long
        it sinks: a stone is thrown into a lake; a coin drops into a well; an anchor is let go; a ship fills with water
        it floats: a cork is thrown into water; a rubber duck is put in the bathtub; a log is pushed into a river
        it burns ~ it dries: paper is held over a flame; dry straw catches a spark; firewood is lit
        it bursts ~ it breaks ~ it shrinks: a balloon is pricked with a needle; a soap bubble touches a thorn
        it bursts ~ it breaks ~ it shrinks: a balloon is blown up too far
        it withers ~ it dries ~ it burns: a plant gets no water; a flower is cut and left on a table
        it withers ~ it dries ~ it burns: a tree is torn out of the ground
        it rusts: an iron nail is left in the rain; a wet bicycle chain is not oiled
        it rusts: an old car stands outside for years
        it dissolves ~ it melts ~ it sinks: sugar is stirred into hot tea; salt is stirred into water
        it dissolves ~ it melts ~ it sinks: an aspirin is dropped into water
        it stretches: a rubber band is pulled; an elastic waistband is pulled
        it grows ~ it barks: a young tree gets sun and rain; a puppy is fed every day; a seedling is watered
        it bounces: a rubber ball is dropped on the floor; a basketball hits the ground
        it turns sour ~ it gets moldy: milk is kept in a warm room for days
        it rings: a bell is struck; a telephone is called; a doorbell is pressed; an alarm clock is set for seven
        it dries ~ it shrinks: wet laundry hangs in the sun; a wet towel is put on a warm radiator
        it dries ~ it shrinks: paint is left overnight
        it rolls down: a ball is let go at the top of a hill; a barrel is pushed over the edge of a slope
        it gets moldy ~ it dries: bread lies in a damp bag for weeks; cheese is forgotten at the back of the fridge
        it goes out: a candle is blown on; a campfire is covered with wet sand; a lamp is switched off
        it shrinks: a wool sweater is washed too hot
        it rises ~ it floats ~ it bursts: a helium balloon is let go
        it barks: a watchdog hears a burglar; a guard dog sees a stranger
        it flies away: a bird is startled by a cat; a pigeon is chased by a child
        """,
    ),
    "reason": relation(
        "causal",
        (
            "The woman {} because",
            "Yesterday she {}, and the reason was that",
            "It is easy to guess why she {}:",
            "Can you guess why she {}?",
        ),
        """
        it was raining: opened her umbrella; put on a raincoat
        it was raining ~ it was dark ~ she was late: took the laundry off the line in a hurry
        she was thirsty ~ it was hot ~ she had a headache: drank three glasses of water; emptied a bottle of lemonade
        she was hungry: ate a whole pizza; made herself three sandwiches; had a second plate of pasta
        she was tired ~ she had the flu ~ she had a headache: lay down for a nap; yawned again and again
        she was tired ~ she had the flu ~ she had a headache: fell asleep on the sofa
        it was cold ~ it was dark ~ it was raining ~ she had the flu: put on a thick sweater; lit a fire in the stove
        it was cold ~ it was dark ~ it was raining ~ she had the flu: put on gloves and a scarf; turned up the heating
        it was hot ~ the sun was too bright: turned on the fan; took off her jacket; looked for a place in the shade
        it was dark ~ it was her birthday: switched on the lamp; took out a flashlight; lit a candle
        she was late ~ it was raining ~ her car had broken down: ran to the station; skipped breakfast and rushed off
        she was late ~ it was raining ~ her car had broken down: drove too fast to the office
        her tooth hurt: went to the dentist; held her cheek in pain
        she had a headache ~ her tooth hurt ~ she had the flu: took an aspirin; rubbed her temples
        she was sad ~ her tooth hurt ~ she had lost her key ~ the joke was funny ~ she had won: wiped away her tears
        the joke was funny ~ she had won: laughed out loud; burst out laughing; could not stop giggling
        the phone was ringing ~ the house was on fire: picked up the receiver; interrupted her meal to talk to a caller
        someone was knocking ~ the house was on fire ~ it was hot: got up to open the door; asked who was there
        the baby was asleep ~ she had a headache: walked on tiptoe; spoke in a whisper
        the baby was asleep ~ she had a headache: closed the nursery door very softly
        the house was on fire: called the fire department; ran out of the house shouting for help
        her car had broken down ~ she was late: had to walk to work; called a tow truck; called the garage
        the light was red: stopped at the crossing; braked in front of the traffic light
        she had the flu ~ she was tired ~ she had a headache: stayed in bed for a week; had a high fever
        her hair was too long: went to the hairdresser; asked for a haircut
        she had lost her key: climbed in through a window; called a locksmith; stood helpless outside the locked door
        it was her birthday ~ she had won: blew out the candles on a cake; got presents from all her friends
        the milk was sour: poured the milk down the sink
        she had won: held up the trophy; was given the gold medal; stood on top of the podium
        the room was a mess: picked up toys from the floor; spent an hour tidying up
        the music was too loud ~ it was cold ~ she had a headache: covered her ears
        the music was too loud ~ it was cold ~ she had a headache: complained to the neighbors about their party
        the sun was too bright ~ it was hot: put on sunglasses; pulled down the blinds; shaded her eyes with her hand
        the soup was too hot: blew on her spoon; burned her tongue at lunch
        the floor was wet ~ it was raining ~ it was dark ~ she was late: slipped in the bathroom; slipped on the tiles
        the elevator was broken: took the stairs to the tenth floor
        she was afraid of spiders: screamed at the sight of a cobweb; had her brother remove the spider
        """,
    ),
    "body part": relation(
        "body",
        (
            "You {} with",
            "To {}, you use",
            "You are able to {} thanks to",
            "What part of the body do you use to {}?",
        ),
        """
        your ears: hear music; listen to a story; notice a faint noise
        your eyes: see colors; read a page; watch the sunset; look at a picture; wink at a friend
        your nose: smell roses; sniff at the milk; notice the scent of coffee
        your teeth ~ your tongue ~ your lips: chew meat; bite into an apple; crunch a carrot
        your tongue ~ your nose ~ your lips: taste ice cream; lick a stamp; taste the soup
        your lungs ~ your nose ~ your lips: breathe; take in air
        your feet: kick a ball; stand on tiptoe; walk barefoot through the sand; stamp on the ground
        your hands ~ your fingers ~ your arms: clap; knead dough; catch a ball; hold a cup
        your fingers ~ your hands ~ your arms: type a letter; play the piano; button a coat; tie a knot
        your lips ~ your tongue ~ your lungs ~ your teeth: kiss; whistle
        your heart: pump blood
        your stomach: digest lunch
        your knees: kneel down
        your shoulders ~ your arms ~ your hands: shrug
        your arms ~ your hands ~ your shoulders: hug a friend; cradle a baby
        your elbow ~ your arms ~ your hands ~ your knees ~ your fingers ~ your shoulders: nudge a neighbor in the ribs
        """,
    ),
    "worn": relation(
        "body",
        (
            "Normally, {} is worn",
            "When somebody has put on {}, it is",
            "The right place for {} is",
            "Where do people wear {}?",
        ),
        """
        on the head: a cap; a crown; a helmet; a sun hat; a wig; a turban; a beret
        on the feet: a pair of slippers; a pair of boots; a pair of sandals; a pair of sneakers; a pair of clogs
        on the hands: a pair of gloves; a pair of mittens
        around the neck ~ around the shoulders ~ on the head: a necktie; a scarf; a pearl necklace; a bow tie; a locket
        around the wrist: a watch; a bracelet; a bangle
        around the waist ~ around the shoulders: a leather belt; a sash; a belt with a buckle
        on a finger: a wedding ring; a thimble; a diamond ring
        on the ears ~ on the head: a pair of earrings; a pair of earmuffs
        over the eyes ~ on the head: a pair of sunglasses; a blindfold; a pair of goggles
        on the legs ~ on the feet ~ around the waist: a pair of jeans; a pair of tights; a pair of trousers
        around the shoulders ~ around the neck: a shawl; a cape; a cloak
        """,
    ),
}
